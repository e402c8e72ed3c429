"""Differentially private federated stochastic convex optimisation, simulated as one compiled JAX program.

The public names are those of `__init__.pyi`; each is imported when it is first used.
"""

from importlib.metadata import version

import lazy_loader

__version__ = version("fedprivjax")
_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str):
    """Return a public name, imported at its first use. For a former name, the error names the current one."""
    try:
        return _public(name)
    except AttributeError as error:
        from fedprivjax.checks.values import RENAMED

        for new in RENAMED.get(name, ()) if name not in __all__ else ():
            raise AttributeError(f"{error}: it is now {new!r}") from None
        raise
