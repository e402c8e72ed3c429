"""Comparison of methods before a run: noise, guarantee, error bound and cost of every protocol at one realised ε.

`plan(...)` returns a dataset with the axes protocol, epsilon and term. Noise and guarantee are those of a run: they are
calibrated in the same way, on a sampled run plan, for a problem without data.
"""

from fedprivjax.method.planning.setting import DEFAULTS, Setting
from fedprivjax.method.planning.uses import KINDS, TERMS, Bound, Draft, Use
from fedprivjax.planner.pilot import Pilot
from fedprivjax.planner.survey import mapping, plan

__all__ = [
    "DEFAULTS",
    "KINDS",
    "TERMS",
    "Bound",
    "Draft",
    "Pilot",
    "Setting",
    "Use",
    "mapping",
    "plan",
]
