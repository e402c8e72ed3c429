"""Which method suits, before anything runs: noise, guarantee, bound and cost of every protocol at one actual ε.

`plan(...)` returns a dataset with the axes protocol, epsilon and term. The noise and the guarantee are those of a run:
the same calibration, on a drawn plan, of a problem that holds no data.
"""

from fedprivjax.planner.bounds import KINDS, TERMS, Bound
from fedprivjax.planner.candidates import METHODS, REFUSED
from fedprivjax.planner.pilot import Pilot
from fedprivjax.planner.setting import DEFAULTS, Setting
from fedprivjax.planner.survey import grid_around, mapping, plan

__all__ = [
    "DEFAULTS",
    "KINDS",
    "METHODS",
    "REFUSED",
    "TERMS",
    "Bound",
    "Pilot",
    "Setting",
    "grid_around",
    "mapping",
    "plan",
]
