"""What a run costs in privacy: host-side float64, never traced."""

from fedprivjax.privacy import gdp
from fedprivjax.privacy.guarantee import PrivacyGuarantee

__all__ = ["PrivacyGuarantee", "gdp"]
