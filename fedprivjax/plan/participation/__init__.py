"""Participation schemes: public or secret, independent of the data, sampled before a run. Each scheme is a class."""

from collections.abc import Callable

from fedprivjax.plan.participation.cohorts import (
    TAIL,
    Balanced,
    Cyclic,
    Full,
    Given,
    Uniform,
    Varying,
)
from fedprivjax.plan.participation.dropouts import Cohorts, Dropouts, OnePass
from fedprivjax.plan.participation.interface import Participation
from fedprivjax.plan.participation.late import Buffered, Delays, Timed
from fedprivjax.plan.participation.secret import CyclicPoisson, PoissonCohorts, SecretSubsets
from fedprivjax.plan.participation.validate import check_participation, draw_schedule
from fedprivjax.plan.participation.weighted import BySize, Weighted

__all__ = [
    "PUBLIC",
    "SCHEMES",
    "TAIL",
    "Balanced",
    "Buffered",
    "BySize",
    "Cohorts",
    "Cyclic",
    "CyclicPoisson",
    "Delays",
    "Dropouts",
    "Full",
    "Given",
    "OnePass",
    "Participation",
    "PoissonCohorts",
    "SecretSubsets",
    "Timed",
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
    "between": Varying.between,
    "varying": Varying,
    "weighted": Weighted,
    "diurnal": Weighted.diurnal,
    "by_size": BySize,
    "poisson_cohorts": PoissonCohorts,
    "secret_subsets": SecretSubsets,
    "cyclic_poisson": CyclicPoisson,
    "buffered": Buffered,
}
PUBLIC = tuple(  # names of the public schemes
    scheme.__name__ for scheme in (Full, Uniform, Balanced, Cyclic, OnePass, Given, Varying, Weighted, BySize)
)
