"""The front door of the kernels: which device is refused, and in which words."""

import ast
import importlib
import inspect
import pathlib
import pkgutil
import re
import warnings

import jax
import jax.numpy as jnp
import pytest

import pipelib.kernels
from pipelib.kernels import (
    attention,
    decode_attention,
    matmul,
    ragged_dot,
    rms_norm,
    scaled_matmul,
    softmax,
)
from pipelib.kernels.attention import attention_kernel
from pipelib.kernels.front import Front
from tests.kernels import printed
from tests.kernels.devices import NO_FORWARD_MODE, pretend


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
        ("NVIDIA A100", "8.0", False, WGMMA),
        ("NVIDIA B200", "10.0", False, WGMMA),
        ("AMD MI300", "gfx942", False, WGMMA),
        ("NVIDIA L4", "8.9", True, TMA),
        ("AMD MI300", "gfx942", True, TMA),
    ],
)
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
NARROW, SCALES = jnp.float8_e4m3fn, (jnp.ones((64, 1)), jnp.ones((1, 1)))
#: Of each kernel: a call that takes the place of its first operand, and its function in plain JAX.
KERNELS = {
    "matmul": (lambda a: matmul(a, X.T), X, "jnp.matmul"),
    "attention": (
        lambda q: attention(q, Q, Q), Q, "pipelib.kernels.attention_reference",
    ),
    "attention_kernel": (
        lambda q: attention_kernel(q, Q, Q)[0], Q, "pipelib.kernels.attention_reference",
    ),
    "decode_attention": (
        lambda q: decode_attention(q[:, :1], Q, Q), Q, "jax.nn.dot_product_attention with a mask",
    ),
    "ragged_dot": (
        lambda lhs: ragged_dot(lhs, X.T[None], jnp.array([64], jnp.int32)), X, "jax.lax.ragged_dot",
    ),
    "scaled_matmul": (
        lambda a: scaled_matmul(a.astype(NARROW), X.astype(NARROW), *SCALES),
        X, "jnp.matmul of the scaled factors",
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
    if name not in ("attention_kernel", "decode_attention", "scaled_matmul"):  # have no gradients
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):  # JAX adds a note
            jax.grad(lambda x: call(x).astype(jnp.float32).sum())(x)


def fronts():
    """Every front door of the package: of modules, and of their classes."""
    for info in pkgutil.walk_packages(pipelib.kernels.__path__, "pipelib.kernels."):
        module = importlib.import_module(info.name)
        for holder in (module, *filter(inspect.isclass, vars(module).values())):
            yield from (each for each in vars(holder).values() if isinstance(each, Front))


def test_what_a_front_prints_can_be_typed():
    """As it is printed: `pipelib.kernels.attention`, for one, is the function, not the package."""
    found = {front.name: front.plain for front in fronts()}
    assert {*KERNELS, "collective_matmul"} == {*found}
    for plain in found.values():
        assert printed.dotted(plain)
        assert all(callable(printed.meaning(name)) for name in printed.dotted(plain))


def literals(source):
    """The strings of a module that are no docstrings; of an f-string, its parts."""
    strings = ast.Constant | ast.JoinedStr
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, strings) and id(node) not in alone:
            yield ast.unparse(node)


def test_what_any_error_prints_can_be_typed():
    root, found = pathlib.Path(pipelib.__path__[0]), set()
    for path in root.rglob("*.py"):
        for text in literals(path.read_text("utf-8")):
            found |= {*printed.dotted(text)}
    assert len(found) > 20
    for name in found:
        with warnings.catch_warnings(action="ignore"):
            printed.meaning(name)


@pytest.mark.parametrize("name", ["pipelib.kernels.attention.attention_reference", "jnp.nothing"])
def test_a_name_that_is_not_there_is_found(name):
    assert printed.dotted(f"call {name}.") == [name]
    with pytest.raises(AttributeError):
        printed.meaning(name)


# Planned for a CPU, `ragged_dot` has copies that a GPU cannot make.
@pytest.mark.parametrize("name", [name for name in KERNELS if name != "ragged_dot"])
def test_a_cpu_that_lowers_for_a_gpu_is_refused_nothing(name):
    call, x, _ = KERNELS[name]
    traced = jax.jit(call).trace(x)
    traced.lower(lowering_platforms=("cuda",))
    with pytest.raises(ValueError, match=r"^Only interpret mode is supported on CPU backend\.$"):
        traced.lower()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.usefixtures("traced_anew")
def test_another_gpu(name, monkeypatch):
    call, x, _ = KERNELS[name]
    pretend(monkeypatch, "NVIDIA A100", "8.0")
    needs = TMA if name in ("softmax", "rms_norm") else WGMMA
    message = f"{name}: NVIDIA A100 has compute capability 8.0, but {needs}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        call(x)


def test_another_error_passes():
    with pytest.raises(ValueError, match=r"^another$"), Front("kernel", "plain").explained():
        raise ValueError("another")


# Forward mode, where plain JAX computes, with the kernel's rules.

#: Functions, and shapes that no kernel takes.
PLAIN = {
    "matmul": (matmul, [(17, 64), (64, 63)]),
    "ragged_dot": (lambda a, b: ragged_dot(a, b, jnp.array([5], jnp.int32)), [(5, 60), (1, 60, 7)]),
    "attention": (attention, [(1, 8, 1, 264)] * 3),
    "rms_norm": (rms_norm, [(3, 129)]),
    "softmax": (softmax, [(3, 129)]),
}


@pytest.mark.parametrize("name", PLAIN)
def test_forward_mode_is_refused_by_jax(name):
    function, shapes = PLAIN[name]
    arrays = tuple(jnp.ones(shape, jnp.bfloat16) for shape in shapes)
    with pytest.raises(TypeError, match=re.escape(NO_FORWARD_MODE)):
        jax.jvp(function, arrays, arrays)
