"""Differentially private federated stochastic convex optimisation, simulated as one compiled JAX program.

The public names are those of `__init__.pyi`; each is imported when it is first used.
"""

from importlib.metadata import version

import lazy_loader

__version__ = version("fedprivjax")
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
