"""Differentially private federated stochastic convex optimisation, simulated as one compiled JAX program.

The public names are those of `__init__.pyi`; each is imported when it is first used. If jax was not imported before,
its disk cache of compiled programs is enabled.
"""

import sys
from importlib.metadata import version

import lazy_loader

from fedprivjax.disk_cache import keep_compiled

__version__ = version("fedprivjax")
if "jax" not in sys.modules:
    keep_compiled()
_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str):
    """Return a public name, imported at its first use. For another name, the error names the current or nearest one."""
    try:
        return _public(name)
    except AttributeError as error:
        if name in __all__ or name.startswith("_"):
            raise
        from fedprivjax.checks.suggestions import OTHER_WORDS, RENAMED, nearest_name

        for new in RENAMED.get(name, ()):
            raise AttributeError(f"{error}: it is now {new!r}") from None
        near, (_, difference) = nearest_name(name, __all__), OTHER_WORDS.get(name.lower(), ("", ""))
        raise AttributeError(f"{error}{near and f', did you mean {near!r}?{difference}'}") from None
