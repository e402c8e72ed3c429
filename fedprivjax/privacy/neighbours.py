"""Machines as adversaries, which see the messages of their neighbours on a graph."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called
from fedprivjax.noise.graphs import as_graph
from fedprivjax.noise.pairwise import edges_of
from fedprivjax.plan.schedule import Schedule
from fedprivjax.privacy.adversaries import SUMMED, Adversary, LinearAdversary
from fedprivjax.privacy.coalition import Honest
from fedprivjax.privacy.events import GaussianEvent
from fedprivjax.privacy.views import FullView, SentNoise, View

MOST_OBSERVERS = 2000  # machines whose views are computed one by one


@final
@dataclass(frozen=True)
class Neighbours(Adversary):
    """Adversary that is another machine of the run, and sees the messages of its neighbours on a graph.

    The adversary also sees all broadcasts of a server, and computes the sum of each round's messages from them. It
    knows its own data and seeds, so its own noise does not hide other machines' messages from it. The guarantee holds
    against the machine that learns most.

    In the example, six machines on a ring send one message each. The method `between` returns μ of Gaussian
    differential privacy of each machine against each other machine, divided by the μ of a machine whose message is seen
    alone. The printed row has the squares of these ratios for machine 0. Machines 1 and 5 see the message of machine 0,
    so their square is 1.

    Attributes:
        graph: "ring", "complete", a `Torus`, a `RandomRings`, a symmetric matrix of 0 and 1 or a networkx graph. An
            experiment file may also give a table with the key `kind`, which is "torus" or "random".

    >>> schedule = Schedule(6, np.array([[0, 1, 2, 3, 4, 5]]))
    >>> sent = SentNoise(np.ones((1, 6)))
    >>> (Neighbours("ring").between(sent, schedule) ** 2).round(2)[0]
    array([0.  , 1.  , 0.33, 0.33, 0.33, 1.  ])
    """

    graph: Any = "ring"
    name: ClassVar[str] = "neighbours"
    trusts: ClassVar[tuple[str, ...]] = ("none",)
    senders: ClassVar[str] = SUMMED
    knows_seeds: ClassVar[bool] = True
    besides: ClassVar[str] = " but the one that observes"

    def __post_init__(self):
        object.__setattr__(self, "graph", as_graph(self.graph))

    @property
    def text(self) -> str:
        return (
            f"all numbers that the server sends to machines and, as any other machine, the messages of its neighbours "
            f"on the graph ({self.graph}), with its own data and seeds"
        )

    @property
    def fewest_machines(self) -> int:
        return self.graph.nodes or 2

    def mus(self, run: Any) -> np.ndarray:
        """Return μ of Gaussian differential privacy of each machine against each other machine.

        The result is float64 of shape [machines, observing machines], with 0 on the diagonal.

        Args:
            run: prepared run with this adversary, as `fedprivjax.ready` returns it.

        Raises:
            Refusal: if `run` is not a prepared run, or if its guarantee does not follow from Gaussian noise in
                messages.
        """
        if not hasattr(run, "problem"):
            raise Refusal(f"run must be what fpj.ready returns, with its problem and plan, got {called(run)}")
        sent = run.protocol.rounds.sent_noise(run.problem, run.plan)
        if sent is None or not isinstance(run.event, GaussianEvent):
            raise Refusal(
                f"μ between machines must follow from Gaussian messages of known noise, got {run.protocol.name}, whose "
                f"guarantee is {run.event.terms.theorem}"
            )
        each = self.between(sent, run.plan.schedule)
        return each * (float(run.event.sensitivity) / run.event.noise_std)

    def between(self, sent: SentNoise, schedule: Schedule) -> np.ndarray:
        """Return the exposure of each machine to each other machine; float64 [machines, observing machines].

        The exposure times the sensitivity, divided by `noise_std`, is the machine's μ of Gaussian differential privacy
        against the observing machine. The diagonal is 0.

        Args:
            sent: noise of the messages that machines send.
            schedule: participation schedule: which machines take part in each round.

        Raises:
            Refusal: if there are more than 2000 machines.
        """
        machines = schedule.machines
        if machines > MOST_OBSERVERS:
            raise Refusal(
                f'machines must be at most {MOST_OBSERVERS} with {self}, got {machines}. Use Local(), in a file "local"'
            )
        found = [self._against(machine, machines).exposures(sent, schedule) for machine in range(machines)]
        return np.where(np.eye(machines, dtype=bool), 0.0, np.stack(found, axis=1))

    def exposures(self, sent: SentNoise, schedule: Schedule) -> np.ndarray:
        return self.between(sent, schedule).max(axis=1)

    def releases(self, sent: SentNoise, schedule: Schedule, machine: int) -> np.ndarray:
        """Return the noise r of one message that is as private as all messages of a machine; float64, shape [1].

        The standard deviation of this noise is r·`noise_std`. The adversary is the other machine that learns most about
        the machine.

        Args:
            sent: noise of the messages that machines send.
            schedule: participation schedule: which machines take part in each round.
            machine: index of the machine.
        """
        return 1 / self.exposures(sent, schedule)[[machine]]

    def known(self, sent: SentNoise | None, schedule: Schedule) -> np.ndarray:
        """Return a mask of the adversary's own messages; bool [rounds, per_round].

        The adversary is the machine that learns most about some other machine.

        Args:
            sent: noise of the messages that machines send, or None for equal noise.
            schedule: participation schedule: which machines take part in each round.
        """
        equal = SentNoise(np.ones(schedule.participants.shape))
        each = self.between(equal if sent is None else sent, schedule)
        return schedule.participants == np.unravel_index(np.argmax(each), each.shape)[1]

    def view(self, full: FullView) -> View:
        assert full.machines is not None
        assert full.known is not None
        observer = int(full.machines[full.known][0]) if full.known.any() else 0
        return _Near(self._near(observer, full.federation)).view(full)

    def _against(self, observer: int, machines: int) -> Honest:
        """Return the view of one machine."""
        return Honest(_Near(self._near(observer, machines)), (observer,))

    def _near(self, observer: int, machines: int) -> tuple[int, ...]:
        """Return the neighbours of a machine."""
        edges = edges_of(self.graph, machines)
        return tuple(edges[(edges == observer).any(axis=1)].sum(axis=1) - observer)


@final
@dataclass(frozen=True)
class _Near(LinearAdversary):
    """View of the messages of some machines, and of all broadcasts."""

    machines: tuple[int, ...]

    def rows(self, machines: np.ndarray) -> Any:
        return np.array(self.machines)[:, None] == machines
