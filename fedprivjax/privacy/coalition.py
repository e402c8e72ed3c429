"""Coalitions of a server and some machines, which know the messages and the seeds of these machines.

In the notation of `adversaries`, the columns of A and K of a coalition's machines are left out. If noise is correlated
between machines, K is its covariance given the coalition's seeds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import ClassVar, final

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_at_least
from fedprivjax.noise.pairwise import EdgeCovariance
from fedprivjax.plan.schedule import Schedule
from fedprivjax.privacy.adversaries import (
    Adversary,
    LinearAdversary,
    Local,
    SecureSum,
    composed,
    is_plain_sum,
    require_adversary,
)
from fedprivjax.privacy.views import UNSEEN_PART, FullView, SentNoise, View, squares_of

MOST_COALITIONS = 10_000  # sets of machines that are enumerated


@final
@dataclass(frozen=True)
class Coalition(Adversary):
    """Adversary that consists of the server and some machines, who share their views, data and random seeds.

    The guarantee is for every machine outside the coalition. It holds for any choice of the `size` machines in the
    coalition.

    Attributes:
        size: number of machines in the coalition, at least 1.
        server: the server alone as an adversary: `SecureSum()`, `Local()` or a `LinearAdversary`.

    If there are at most 10⁴ possible coalitions, the guarantee is computed for each of them, and the weakest guarantee
    is stated. Otherwise, the guarantee is computed for a stronger adversary:

    * If the server sees only the sum of each round's messages, this adversary knows the `size` largest noises of each
      round, except the noise of the protected machine. Noise must be independent, or cancel in the sum as with
      `Pairwise`.
    * If the server sees every message, and machines share `Pairwise` noise, this adversary knows all shared noise
      in which the protected machine has no part. Of the protected machine's shared noises, it knows the `size` largest.

    If the server sees every message, and noise is independent, the coalition learns no more than the server.

    In this example, four machines send messages with equal noise, and the coalition knows the noises of two of them.
    The method `exposures` returns μ of Gaussian differential privacy of each machine, divided by the μ of a machine
    whose message is seen alone. In the sum, the noise of the other two messages stays unknown.

    >>> schedule = Schedule(4, np.array([[0, 1, 2, 3]]))
    >>> Coalition(2).exposures(SentNoise(np.ones((1, 4))), schedule) ** 2
    array([0.5, 0.5, 0.5, 0.5])
    """

    size: int = 1
    server: Adversary = field(default_factory=SecureSum)
    name: ClassVar[str] = "coalition"
    trusts: ClassVar[tuple[str, ...]] = ("none",)
    knows_seeds: ClassVar[bool] = True
    besides: ClassVar[str] = " outside of the coalition"

    def __post_init__(self):
        require_at_least("size", self.size, 1)
        if not isinstance(self.server, Local | LinearAdversary):
            known = 'SecureSum(), Local() or a LinearAdversary (in a file "secure-sum" or "local")'
            raise Refusal(f"server must be {known}, got {called(self.server)}")
        require_adversary(self.server)

    @property
    def text(self) -> str:
        who = "one machine" if self.size == 1 else f"{self.size} machines"
        return f"{self.server.text}, and the data and seeds of any {who} other than the protected one"

    @property
    def senders(self) -> str:  # type: ignore[override]
        return self.server.senders

    @property
    def fewest_machines(self) -> int:
        return self.size + 1

    def view(self, full: FullView) -> View:
        return self.server.view(full)

    def exposures(self, sent: SentNoise, schedule: Schedule) -> np.ndarray | None:
        return None if self._gains_nothing(sent) else np.sqrt(self._worst(sent, schedule)[0])

    def releases(self, sent: SentNoise, schedule: Schedule, machine: int) -> np.ndarray:
        """Return a relative noise r that is equivalent to all messages of a machine together; float64, shape [1].

        One message with noise of standard deviation r·`noise_std` would have the same privacy loss as all messages of
        the machine together, against the coalition that learns most about it.

        Args:
            sent: noise of the messages that machines send.
            schedule: participation schedule: which machines take part in each round.
            machine: index of the machine.
        """
        return 1 / np.sqrt(self._worst(sent, schedule)[0][[machine]])

    def known(self, sent: SentNoise | None, schedule: Schedule) -> np.ndarray | None:
        if sent is None or self._gains_nothing(sent):
            return None
        worst, against = self._worst(sent, schedule)
        return np.isin(schedule.participants, against(int(np.argmax(worst))))

    def _gains_nothing(self, sent: SentNoise) -> bool:
        """Return True if the server sees every message, and the noise of machines is independent."""
        return isinstance(self.server, Local) and sent.covariance is None

    def _worst(self, sent: SentNoise, schedule: Schedule) -> tuple[np.ndarray, Callable[[int], np.ndarray]]:
        """Return the largest (μ·σ/Δ)² of each machine, [machines], and the function from a machine to its coalition.

        Raises:
            Refusal: there are too many coalitions for noise or functions other than those of a plain sum.
        """
        machines, number = schedule.machines, comb(schedule.machines, self.size)
        if self.size >= machines:
            raise Refusal(
                f"size of a Coalition must be below the number of machines, {machines}, got {self.size}. Use a smaller "
                f"size, or more machines"
            )
        if number > MOST_COALITIONS:
            edges = sent.covariance
            if isinstance(self.server, Local) and isinstance(edges, EdgeCovariance):
                found = _AnyKnown(self.size, edges).exposures(sent, schedule) ** 2
                return found, lambda machine: edges.nearest(machine)[: self.size]
            if not is_plain_sum(self.server, sent):
                raise Refusal(
                    f"size of a Coalition must leave at most {MOST_COALITIONS} coalitions with {self.server} and this "
                    f"noise, got {number}, of {self.size} out of {machines} machines. Use SecureSum(), in a file "
                    f'"secure-sum"'
                )
            return _noisiest_known(sent, schedule, self.size)
        noises = sent.variances[schedule.scheduled]
        plain = is_plain_sum(self.server, sent) and noises.min() > UNSEEN_PART * noises.max()
        against = _sums_without(sent, schedule) if plain else self._against(sent, schedule)
        worst, coalitions = np.zeros(machines), np.zeros((machines, self.size), int)
        for members in combinations(range(machines), self.size):
            each = against(np.array(members))
            each[list(members)] = 0.0
            coalitions[each > worst] = members
            worst = np.maximum(worst, each)
        return worst, coalitions.__getitem__

    def _against(self, sent: SentNoise, schedule: Schedule) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function from a coalition to (μ·σ/Δ)² of each machine."""
        return lambda members: Honest(self.server, tuple(members)).exposures(sent, schedule) ** 2


def _sums_without(sent: SentNoise, schedule: Schedule) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function from a coalition to (μ·σ/Δ)² of each machine in the sums of the other machines' messages."""
    noises, late = np.zeros((2, schedule.size.rounds, schedule.machines))
    t, slots = np.nonzero(schedule.scheduled)
    machines, dropped = schedule.participants[t, slots], ~schedule.present[t, slots]
    noises[t[~dropped], machines[~dropped]] = sent.variances[t, slots][~dropped]
    late[t[dropped], machines[dropped]] = sent.variances[t, slots][dropped]
    total, used, dropouts = noises.sum(axis=1), (noises > 0).astype(float), bool(dropped.any())

    def against(members: np.ndarray) -> np.ndarray:
        left = np.maximum(total - noises[:, members].sum(axis=1), 0.0)
        inverse = np.divide(1.0, left, out=np.zeros_like(left), where=left > 0)  # 0: only the coalition sends
        if not (sent.once or dropouts):
            return inverse @ used
        each = used * inverse[:, None] + np.where(late > 0, 1 / np.where(late > 0, left[:, None] + late, 1.0), 0.0)
        return each.max(axis=0) if sent.once else each.sum(axis=0)

    return against


def _noisiest_known(sent: SentNoise, schedule: Schedule, size: int) -> tuple[np.ndarray, Callable[[int], np.ndarray]]:
    """Return `_worst` as upper bounds: the noisiest other machines of each round count as known."""
    present = schedule.present
    noises = np.where(present, sent.variances, 0.0)
    largest = -np.sort(-noises, axis=1)[:, : size + 1]
    own_is_large = noises >= largest[:, -1:]
    others = np.sort(noises, axis=1)[:, : max(noises.shape[1] - size - 1, 0)].sum(axis=1, keepdims=True)
    left = others + np.where(own_is_large, noises, largest[:, -1:]) + np.where(present, 0.0, sent.variances)
    with np.errstate(divide="ignore"):
        found = composed(np.where(schedule.scheduled, 1 / left, 0.0), sent, schedule)
    often = np.argsort(-schedule.total, kind="stable")[: size + 1]
    return found, lambda machine: often[often != machine][:size]


@dataclass(frozen=True)
class Honest(LinearAdversary):
    """View that a server has of the messages of machines outside of a coalition."""

    server: Adversary
    members: tuple[int, ...]

    def _matrix(self, machines: np.ndarray) -> np.ndarray | None:
        return None if isinstance(self.server, Local) else self.server._matrix(machines)  # type: ignore[attr-defined]

    def _squares(self, sent: SentNoise, machines: np.ndarray, variances: np.ndarray, sending: np.ndarray) -> np.ndarray:
        hidden = sending & ~np.isin(machines, self.members)
        return squares_of(self._matrix(machines), sent, machines, variances, hidden)


@dataclass(frozen=True)
class _AnyKnown(LinearAdversary):
    """View of every message and of the seeds of any `size` machines, of which an upper bound is known."""

    size: int
    edges: EdgeCovariance

    def _matrix(self, machines: np.ndarray) -> None:
        return None

    def _squares(self, sent: SentNoise, machines: np.ndarray, variances: np.ndarray, sending: np.ndarray) -> np.ndarray:
        return self.edges.most(machines, sending, self.size)
