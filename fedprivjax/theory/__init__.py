"""Bounds of the papers, and the step sizes that attain them, as functions of numbers; one module for each paper."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
