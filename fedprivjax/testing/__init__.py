"""What every protocol must satisfy, one's own among them: `check_protocol(protocol, problem)`.

Each property is a function of a `Trial`, by name in `PROPERTIES`, so that a test can be parametrised with them.
"""

from fedprivjax.testing.contract import PROPERTIES, Property, Report, check_protocol
from fedprivjax.testing.trial import Trial

__all__ = ["PROPERTIES", "Property", "Report", "Trial", "check_protocol"]
