"""Methods, one per file, named as in their papers. Parts that methods share are in `fedprivjax.method`.

`__init__.pyi` lists the public names. Each is imported at its first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
