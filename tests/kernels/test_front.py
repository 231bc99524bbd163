"""The front door of the kernels: which device is refused, and in which words."""

import pkgutil
import re

import jax
import jax.numpy as jnp
import pytest

from pipelib.kernels import attention, decode_attention, matmul, rms_norm, softmax
from pipelib.kernels.attention import attention_kernel
from pipelib.kernels.front import Front
from tests.kernels.devices import pretend


@pytest.mark.parametrize("or_newer", [False, True])
def test_a_hopper_and_what_is_no_gpu_are_refused_nothing(or_newer, monkeypatch):
    Front("kernel", "plain", or_newer=or_newer).require_gpu()
    pretend(monkeypatch, "NVIDIA H200", "9.0")
    Front("kernel", "plain", or_newer=or_newer).require_gpu()
    pretend(monkeypatch, "Other", "8.0", platform="tpu")
    Front("kernel", "plain", or_newer=or_newer).require_gpu()


WGMMA, TMA = "wgmma needs 9.x, a Hopper GPU.", "TMA needs 9.0 or more, Hopper or newer."


@pytest.mark.parametrize(
    ("device_kind", "capability", "or_newer", "needs"),
    [
        ("NVIDIA A100", "8.0", False, WGMMA), ("NVIDIA B200", "10.0", False, WGMMA),
        ("AMD MI300", "gfx942", False, WGMMA),
        ("NVIDIA L4", "8.9", True, TMA), ("AMD MI300", "gfx942", True, TMA),
    ],
)  # fmt: skip
def test_what_another_gpu_lacks(device_kind, capability, or_newer, needs, monkeypatch):
    pretend(monkeypatch, device_kind, capability)
    message = f"kernel: {device_kind} has compute capability {capability}, but {needs}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Front("kernel", "plain", or_newer=or_newer).require_gpu()


def test_a_gpu_newer_than_hopper_has_tma(monkeypatch):
    pretend(monkeypatch, "NVIDIA B200", "10.0")
    Front("kernel", "plain", or_newer=True).require_gpu()


# A CPU without an interpreter.

X = jnp.ones((64, 128), jnp.bfloat16)
Q = X.reshape(1, 64, 1, 128)
#: Of each kernel: a call that takes the place of its first operand, and its function in plain JAX.
KERNELS = {
    "matmul": (lambda a: matmul(a, X.T), X, "jnp.matmul"),
    "attention": (
        lambda q: attention(q, Q, Q), Q, "pipelib.kernels.attention.attention_reference",
    ),
    "attention_kernel": (
        lambda q: attention_kernel(q, Q, Q)[0], Q, "pipelib.kernels.attention.attention_reference",
    ),
    "decode_attention": (
        lambda q: decode_attention(q[:, :1], Q, Q), Q, "jax.nn.dot_product_attention with a mask",
    ),
    "softmax": (softmax, X, "jax.nn.softmax"),
    "rms_norm": (rms_norm, X, "pipelib.kernels.memory_bound.rms_norm_reference"),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_a_cpu_that_interprets_nothing(name):
    call, x, plain = KERNELS[name]
    message = (
        f"{name}: there is no Hopper GPU here (JAX's backend is cpu), so nothing can run the"
        f" kernel: call it under plgpu.force_gpu_interpret_mode(), or call {plain}."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call(x)
    if name not in ("attention_kernel", "decode_attention"):  # which have no gradients
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):  # JAX adds a note
            jax.grad(lambda x: call(x).astype(jnp.float32).sum())(x)
    assert callable(pkgutil.resolve_name(plain.split()[0].replace("jnp", "jax.numpy")))


@pytest.mark.parametrize("name", KERNELS)
def test_a_cpu_that_lowers_for_a_gpu_is_refused_nothing(name):
    call, x, _ = KERNELS[name]
    traced = jax.jit(call).trace(x)
    traced.lower(lowering_platforms=("cuda",))
    with pytest.raises(ValueError, match=r"^Only interpret mode is supported on CPU backend\.$"):
        traced.lower()


def test_another_error_passes():
    with pytest.raises(ValueError, match=r"^another$"), Front("kernel", "plain").explained():
        raise ValueError("another")
