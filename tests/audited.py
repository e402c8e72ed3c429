"""Shared settings of audit tests: a federation, and audits with fewer preparation runs and smaller chunks."""

from fedprivjax import Uniform
from fedprivjax.auditing import canary_search, views
from fedprivjax.auditing.federation import Federation

SETTINGS = {"participation": Uniform(4, 2), "rounds": 8, "records": 12}
FEDERATION = Federation(**SETTINGS, dense=False)
CHUNK = 512


def smaller(patch, preparing=2048):
    """Set chunks to 512 runs, and compute weights and thresholds from `preparing` runs."""
    patch.setattr(views, "MOST", CHUNK)
    patch.setattr(canary_search, "PREPARING", preparing)
