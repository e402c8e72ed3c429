"""Theorems of the papers as functions of numbers: bounds, and the step sizes that attain them, by paper."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
