"""Which device JAX is told of, and what it says of a function without a forward rule."""

import types

import jax

#: What JAX says of the forward mode of a function that has only a reverse rule.
NO_FORWARD_MODE = "can't apply forward-mode autodiff (jvp) to a custom_vjp function."


def pretend(monkeypatch, device_kind, compute_capability, platform="gpu"):
    """JAX's only device is another."""
    found = types.SimpleNamespace(
        platform=platform,
        device_kind=device_kind,
        compute_capability=compute_capability,
        core_count=108,
    )
    monkeypatch.setattr(jax, "devices", lambda *_: [found])
