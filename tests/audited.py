"""What tests of audits share: a federation, and audits with fewer runs to prepare and in smaller chunks."""

from fedprivjax import Uniform
from fedprivjax.auditing import audit, views
from fedprivjax.auditing.neighbouring import Federation

SETTINGS = {"participation": Uniform(4, 2), "rounds": 8, "records": 12}
FEDERATION = Federation(**SETTINGS)
CHUNK = 512


def smaller(patch, preparing=2048):
    """Chunks of 512 runs, and weights and thresholds from so many."""
    patch.setattr(views, "MOST", CHUNK)
    patch.setattr(audit, "PREPARING", preparing)
