"""Contract that every protocol must satisfy, including custom ones: `check_protocol(protocol, problem)`.

Each property is a function of a `Trial`, listed by name in `PROPERTIES`, so that tests can be parametrised with them.
"""

from fedprivjax.testing.contract import PROPERTIES, Property, Report, check_protocol
from fedprivjax.testing.trial import Trial

__all__ = ["PROPERTIES", "Property", "Report", "Trial", "check_protocol"]
