"""Contract that every protocol must satisfy, including custom ones: `check_protocol(protocol, problem)`.

Each property is a function of a `Trial`, listed by name in `PROPERTIES`, so that tests can be parametrised with them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
