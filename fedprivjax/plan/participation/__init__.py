"""Participation schemes: public, independent of the data, sampled before a run. Each scheme is a class."""

from collections.abc import Callable

from fedprivjax.plan.participation.dropouts import Dropouts
from fedprivjax.plan.participation.fixed import Balanced, Cyclic, Full, Given, Uniform
from fedprivjax.plan.participation.interface import Participation
from fedprivjax.plan.participation.one_pass import Cohorts, OnePass
from fedprivjax.plan.participation.validate import check_participation, draw_schedule
from fedprivjax.plan.participation.varying import TAIL, Varying
from fedprivjax.plan.participation.weighted import BySize, Weighted

__all__ = [
    "SCHEMES",
    "TAIL",
    "Balanced",
    "BySize",
    "Cohorts",
    "Cyclic",
    "Dropouts",
    "Full",
    "Given",
    "OnePass",
    "Participation",
    "Uniform",
    "Varying",
    "Weighted",
    "check_participation",
    "draw_schedule",
]

SCHEMES: dict[str, Callable[..., Participation]] = {  # by name in experiment files
    "full": Full,
    "uniform": Uniform,
    "balanced": Balanced,
    "cyclic": Cyclic,
    "one_pass": OnePass,
    "phases": Cohorts,
    "given": Given,
    "binomial": Varying.binomial,
    "bernoulli": Varying.binomial,
    "between": Varying.between,
    "varying": Varying,
    "weighted": Weighted,
    "diurnal": Weighted.diurnal,
    "by_size": BySize,
}
