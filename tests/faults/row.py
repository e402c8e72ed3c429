"""A row of the catalogue, and the inputs of its detector."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from cases import POOL
from faults.federations import SMALL

from fedprivjax.auditing.federation import Federation

LEAK, NOISE = "leak", "noise fault"


class Audited(NamedTuple):
    """Input of an audit.

    Attributes:
        protocol: audited protocol.
        federation: federation of its runs, or None for that of `small_federation`.
        runs: number of runs per neighbouring dataset.
        delta: δ of the bounds on ε. Without a claimed μ, a large δ gives the most power.
        public: names of reported scalars that are published.
    """

    protocol: Any
    federation: Federation | None = SMALL
    runs: int = 30_000
    delta: float = 1e-5
    public: tuple[str, ...] = ()


class Drawn(NamedTuple):
    """Input of the distribution test: a function that samples noise, [rounds, samples], and its expected covariance."""

    draw: Callable[[], np.ndarray]
    covariance: np.ndarray


class Numbers(NamedTuple):
    """Input of brute force or of an accountant: a claimed value and a lower bound that it must reach.

    For brute force these are the claimed sensitivity and the largest change found. For an accountant they are the
    claimed ε and an achieved ε.
    """

    claimed: Callable[[], float]
    found: Callable[[], float]


class Held(NamedTuple):
    """Input of the contract: a protocol, the property that fails, and the problem."""

    protocol: Any
    fails: str
    problem: Any = POOL


class Fault(NamedTuple):
    """A row of the catalogue.

    Attributes:
        change: description of the fault.
        kind: "leak" or "noise fault".
        detector: detector that must flag it: "audit", "distribution", "sensitivity", "accountant" or "contract".
        faulty: input of the detector.
        right: input without the fault, which the detector must not flag.
    """

    change: str
    kind: str
    detector: str
    faulty: Any
    right: Any
