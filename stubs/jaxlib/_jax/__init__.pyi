"""What JAX's extension module has, and our packages use."""

from typing import Any

from jaxlib._jax import pytree as pytree

def __getattr__(name: str) -> Any: ...

class Client:
    platform_version: str

class Device:
    id: int
    platform: str
    device_kind: str
    client: Client
    core_count: int
