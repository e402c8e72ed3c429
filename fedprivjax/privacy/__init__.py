"""Privacy accounting: events, guarantees, calibration. Computed on the host in float64, never traced."""

from fedprivjax.privacy import gdp
from fedprivjax.privacy.guarantee import PrivacyGuarantee

__all__ = ["PrivacyGuarantee", "gdp"]
