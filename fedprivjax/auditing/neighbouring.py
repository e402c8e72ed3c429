"""Two neighbouring datasets ("worlds") in which one record, the canary, changes the releases as much as possible.

If the guarantee is an ε for adding or removing a record or machine, the canary's labels are 0 in the first dataset. Its
gradients are then zero, as if it were absent, because sums are divided by a public constant.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedprivjax.auditing.canaries import AXES, labels_of
from fedprivjax.auditing.federation import EDGE, LINEAR, QUADRATIC, Federation
from fedprivjax.checks.numbers import leaves_of
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.engine.prepare import ReadyRun, ready
from fedprivjax.engine.transcript import require_noisy_messages
from fedprivjax.method.seen import adversary_of
from fedprivjax.noise import Randomised
from fedprivjax.plan.participation import (
    CyclicPoisson,
    Dropouts,
    Full,
    Participation,
    PoissonCohorts,
    SecretSubsets,
    Uniform,
    Varying,
)
from fedprivjax.plan.samplers import LocalEpochs
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.privacy.relations import ADD_OR_REMOVE
from fedprivjax.problem.problem import Table

MACHINES, RECORDS, ROUNDS = 4, 12, 12
FIXED, VARYING, DROPOUTS, SECRET = "fixed", "varying", "dropouts", "secret"
SCHEDULES: dict[str, Callable[[int], tuple[Participation, ...]]] = {
    FIXED: lambda machines: (Uniform(machines, machines // 2), Full(machines)),
    VARYING: lambda machines: (Varying.between(machines, 1, machines - 1),),
    DROPOUTS: lambda machines: (Dropouts(Uniform(machines, machines - 1), 0.25), Dropouts(Full(machines), 0.25)),
    SECRET: lambda machines: (
        PoissonCohorts(machines, 0.5),
        SecretSubsets(machines, machines // 2),
        CyclicPoisson(machines, 2 - machines % 2, 0.5),
    ),
}


def machines_of(protocol: Any) -> int:
    """Return the number of machines of an audit: four, but more for a large coalition, or those of the privacy."""
    return privacy_of(protocol).for_machines or max(MACHINES, adversary_of(protocol).fewest_machines)


class NotAllowed(Refusal):
    """Refusal of a participation scheme that a method does not allow."""


def small_federation(
    protocol, rounds: int | None = None, *, participation: str = FIXED, loss: str = LINEAR
) -> Federation:
    """Return a federation for a protocol of four machines (see `machines_of`), with at least twelve records each.

    Half of the machines take part per round, one machine if a server's noise is correlated over rounds, or all of them
    if the method requires it or the privacy is defined for one number of machines. A method that passes over all
    records of a machine gets the necessary number of rounds. A method whose machines randomise their messages
    (`Randomised`) gets the smallest dimension, in which random coordinates show the canary most often.

    Args:
        rounds: number of rounds. Default: 12, or 1 if machines randomise their messages or only the final model is
            seen. Over 12 rounds pure ε add up to more than an audit's runs can show, so that it would miss a wrong ε
            of one message, and noise of later rounds hides a canary from who sees the final model. One round tests no
            composition: set `rounds` for that.
        participation: "fixed"; "varying", one machine to all but one per round; "dropouts", all but one per round, each
            of which fails to send with probability 1/4; or "secret", each machine with probability 1/2 or, if the
            method does not allow this, a secret half, or each of half of them in turn with probability 1/2.
        loss: "linear" or "quadratic", see `Federation`.

    Raises:
        Refusal: `NotAllowed` if the method does not allow such participation.
    """
    require_choice("participation", participation, SCHEDULES)
    sampler = protocol.minibatches
    batch = 1 if sampler is None or sampler.batch is None else int(np.max(sampler.batch))
    follows = adversary_of(protocol).follows_rounds
    most = (ROUNDS if follows else 1) if rounds is None else rounds
    messages = most if sampler is None or sampler.one_pass else 4
    records = batch * max(messages, -(-RECORDS // batch))
    if isinstance(sampler, LocalEpochs) and batch > 1:
        records += 1  # so that the last batch of an epoch is short
    refusals, machines = [], machines_of(protocol)
    schemes = SCHEDULES[participation](machines)
    if privacy_of(protocol).for_machines:
        schemes = schemes[::-1]  # all machines first, with which any object for a fixed graph is defined
    for scheme in schemes:
        federation = Federation(scheme, most, records, loss=loss)
        try:
            start = _begun(protocol, federation, 0, -1, 1e-5, 0)
        except Refusal as error:
            refusals.append(error)
            continue
        if start.mechanism.correlated and participation == FIXED and scheme == schemes[0]:
            seldom = Uniform(machines, 1)  # if machines come often, the best factor over rounds is the identity
            return replace(federation, participation=seldom)
        if isinstance(start.mechanism, Randomised):
            return replace(federation, rounds=rounds or 1, dimension=AXES)
        return federation
    raise refusals[0] if participation == FIXED else NotAllowed(str(refusals[0]))


@dataclass(frozen=True)
class Worlds:
    """Prepared runs of a protocol on both datasets, with materialised noise.

    Attributes:
        starts: the two runs. The canary's label is negative in the first, or 0 if it is absent, and positive in the
            second.
        canary: the canary's row of the pool. If the guarantee protects machines, it stands for all of its machine's.
        machine: the canary's machine.
    """

    starts: tuple[ReadyRun, ReadyRun]
    canary: int
    machine: int

    @property
    def absent(self) -> bool:
        """True if the canary is absent in the first dataset, False if it is replaced."""
        return may_be_absent(self.start.guarantee)

    @property
    def start(self) -> ReadyRun:
        """Prepared run on the first dataset."""
        return self.starts[0]

    def replaced(self, row: int) -> np.ndarray:
        """Return the rows of the pool that are replaced with a canary `row`, bool [records]."""
        rows = np.arange(len(labels_of(self.start.problem)))
        return np.isin(rows, _replaced(self.start.protocol, row, self.start.problem.partition_table))


def worlds(protocol, federation: Federation, canary: int | None, *, delta: float, seed: int = 0) -> Worlds:
    """Return the prepared runs of a protocol on the two datasets of one canary.

    Args:
        canary: its row of the pool, or None for the first used record.

    Raises:
        Refusal: if the settings cannot be run, or the noise cannot be materialised message by message.

    >>> from fedprivjax import NoisySGD
    >>> protocol = NoisySGD(mu=1.0, clip=1.0)
    >>> two = worlds(protocol, small_federation(protocol), 0, delta=1e-5)
    >>> [start.problem.pool.label[:3].tolist() for start in two.starts], two.machine
    ([[-1.0, 0.0, 0.0], [0.5, 0.0, 0.0]], 0)
    """
    first = _begun(protocol, federation, canary or 0, -1, delta, seed)
    canary = _first_used(first) if canary is None else canary
    protocol = _with_short_steps(protocol, first, exactly=federation.loss == QUADRATIC)
    signs = (0 if may_be_absent(first.guarantee) else -1, 1)
    starts = [_begun(protocol, federation, canary, sign, delta, seed) for sign in signs]
    require_noisy_messages(starts[0])
    return Worlds((starts[0], starts[1]), canary, _owner(starts[0], canary))


def may_be_absent(guarantee: PrivacyGuarantee) -> bool:
    """Return True if the guarantee is an ε for adding or removing one. A μ is audited for replacing one, at twice μ."""
    return guarantee.relation == ADD_OR_REMOVE and guarantee.mus is None


def _begun(protocol, federation: Federation, canary: int, sign: int, delta: float, seed: int) -> ReadyRun:
    """Return the prepared run on one dataset. A method without a default step size gets step size 1."""
    split = protocol.minibatches is not None
    table = np.arange(federation.participation.machines * federation.records).reshape(-1, federation.records)
    rows = _replaced(protocol, canary, Table(table))
    label = federation.positive_label(protocol) if sign > 0 else float(sign)
    problem = federation.problem(privacy_of(protocol).gradient_clip, split, rows, label)
    options: dict[str, Any] = {"rounds": federation.rounds, "seed": seed, "delta": delta, "metrics": ()}
    options |= {"order": "shuffled" if split else federation.order, "noise_method": "materialised"}
    participation = federation.taking_part(problem)
    try:
        return ready(protocol, problem, participation, **options)
    except Refusal:
        if protocol.step_size is not None or "step_size" not in leaves_of(protocol):
            raise
    return ready(replace(protocol, step_size=1.0), problem, participation, **options)


def _replaced(protocol, canary: int, table: Table | None) -> Any:
    """Return the rows that are replaced with the canary: itself, or all of its machine's if machines are protected."""
    if not privacy_of(protocol).protects_machines or table is None:
        return canary
    return table.rows[np.flatnonzero((table.rows == canary).any(axis=1))[0]]


def hides_uses(start: ReadyRun) -> bool:
    """Return True if machines own their records, and samples or participation are secret, so that no use is known."""
    secret = start.plan.secret or start.plan.schedule.secret is not None
    return secret and start.problem.partition_table is not None


def records_used(start: ReadyRun, machine: int) -> list[int]:
    """Return the pool rows that a machine uses, in the order of first use.

    If samples or participation are secret, all its records are equally exposed and returned in partition order.
    """
    schedule, table = start.plan.schedule, start.problem.partition_table
    if hides_uses(start) and table is not None:
        rows = table.rows[machine]
        return rows[rows >= 0].tolist()
    own = (schedule.participants == machine) & schedule.present
    return list(dict.fromkeys(_samples(start)[own].ravel().tolist()))


def _samples(start: ReadyRun) -> np.ndarray:
    """Return the pool rows that each message uses, shape [rounds, per_round, width]."""
    return start.plan.samples.reshape(*start.plan.schedule.participants.shape, -1)


def _first_used(start: ReadyRun) -> int:
    """Return the pool's first record if machines own their records, otherwise the first record used by a message."""
    own = start.problem.partition_table is not None
    return 0 if own else int(_samples(start)[start.plan.schedule.present][0, 0])


def _owner(start: ReadyRun, canary: int) -> int:
    """Return the canary's machine: its owner, or the first machine that uses it."""
    schedule, table = start.plan.schedule, start.problem.partition_table
    if table is not None:
        return int(np.flatnonzero((table.rows == canary).any(axis=1))[0])
    uses = schedule.participants[(_samples(start) == canary).any(axis=2) & schedule.present]
    if not uses.size:
        raise Refusal(f"canary must be a record that the schedule uses, got {canary}")
    return int(uses[0])


def _with_short_steps(protocol, start: ReadyRun, *, exactly: bool):
    """Return the protocol with `step_scale`, if it has one, such that iterates move at most (or exactly) `EDGE`."""
    if "step_scale" not in leaves_of(protocol) or privacy_of(protocol).protects_machines:
        return protocol  # clipped updates are short
    ready = start.protocol
    longest = float(np.max(ready.step_size)) * (1.0 + float(np.max(ready.noise_std))) * start.plan.size.rounds**2
    scale = EDGE / longest
    return replace(protocol, step_scale=scale if exactly else min(float(np.max(protocol.step_scale)), scale))
