"""A row of the catalogue, and what its detector takes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from cases import POOL
from faults.federations import SMALL

from fedprivjax.auditing.neighbouring import Federation

LEAK, LAW = "leak", "law fault"


class Audited(NamedTuple):
    """For an audit.

    Attributes:
        protocol: on trial.
        federation: that it runs on.
        runs: of each world.
        delta: of the bounds on ε: where no μ is claimed, a large one shows most.
        public: scalars that rounds report and that are published.
    """

    protocol: Any
    federation: Federation = SMALL
    runs: int = 30_000
    delta: float = 1e-5
    public: tuple[str, ...] = ()


class Drawn(NamedTuple):
    """For the law test: a function that draws noise, [rounds, samples], and the covariance that it should have."""

    draw: Callable[[], np.ndarray]
    covariance: np.ndarray


class Numbers(NamedTuple):
    """For brute force, the sensitivity that is claimed and the largest move that was found; for an accountant, the ε
    that is claimed and one that is attained."""

    claimed: Callable[[], float]
    found: Callable[[], float]


class Held(NamedTuple):
    """For the contract: the property that fails, of a protocol on a problem."""

    protocol: Any
    fails: str
    problem: Any = POOL


class Fault(NamedTuple):
    """A row of the catalogue.

    Attributes:
        change: what is wrong.
        kind: "leak" or "law fault".
        detector: that must flag it: "audit", "law", "sensitivity", "accountant" or "contract".
        faulty: what the detector takes.
        right: the same without the fault, which the detector must not flag.
    """

    change: str
    kind: str
    detector: str
    faulty: Any
    right: Any
