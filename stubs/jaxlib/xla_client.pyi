"""What JAX says of devices."""

from typing import Any

from jaxlib._jax import Client as Client
from jaxlib._jax import Device as Device

def __getattr__(name: str) -> Any: ...
