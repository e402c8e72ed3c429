"""Which method suits, before anything runs: noise, guarantee, bound and cost of every protocol at one actual ε.

`plan(...)` returns a dataset with the axes protocol, epsilon and term. The noise and the guarantee are those of a run:
the same calibration, on a drawn plan, of a problem that holds no data.
"""

from fedprivjax.method.planning.bounds import KINDS, TERMS, Bound
from fedprivjax.method.planning.setting import DEFAULTS, Setting
from fedprivjax.method.planning.uses import Draft, Use
from fedprivjax.planner.pilot import Pilot
from fedprivjax.planner.survey import grid_around, mapping, plan

__all__ = [
    "DEFAULTS",
    "KINDS",
    "TERMS",
    "Bound",
    "Draft",
    "Pilot",
    "Setting",
    "Use",
    "grid_around",
    "mapping",
    "plan",
]
