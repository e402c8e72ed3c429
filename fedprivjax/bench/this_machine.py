"""Description of the machine, its device and the libraries."""

import platform
from importlib.metadata import version
from typing import Any

import jax


def machine() -> dict[str, Any]:
    """Return a description of the machine and of the library versions."""
    device = jax.devices()[0]
    return {
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "device": f"{jax.device_count()} × {device.device_kind}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("fedprivjax", "jax", "jaxlib", "numpy")},
    }
