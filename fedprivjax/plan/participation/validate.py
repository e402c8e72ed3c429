"""Checks of participation schemes and of every sampled schedule, for custom schemes above all."""

import inspect
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np

from fedprivjax.checks.decorated import require_decorated
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.restated import of_package
from fedprivjax.checks.values import called
from fedprivjax.plan.participation.interface import Participation, check_sizes
from fedprivjax.plan.schedule import Schedule

MOST_COMPARED = 100_000  # largest schedule, in slots, that is sampled a second time for comparison


def check_participation(participation) -> None:
    """Raise Refusal unless `participation` is a Participation of possible sizes.

    >>> check_participation(10)
    Traceback (most recent call last):
    fedprivjax.Refusal: participation must be a Participation, such as Full(10) or Uniform(10, per_round), got 10
    """
    if not isinstance(participation, Participation):
        machines = participation if isinstance(participation, int) and participation > 0 else "machines"
        examples = f"Full({machines}) or Uniform({machines}, per_round)"
        raise Refusal(f"participation must be a Participation, such as {examples}, got {called(participation)}")
    require_decorated(participation)
    given: list[Any] = [getattr(participation, name, None) for name in ("machines", "per_round")]
    check_sizes(*given)


def draw_schedule(participation: Participation, rounds: int, rng: np.random.Generator) -> Schedule:
    """Return the scheme's schedule, checked, with int32 participants and the cohort size's moments filled in.

    Raises:
        Refusal: as in `checked_draw`, or if the moments are impossible.
    """
    drawn = checked_draw(participation, rounds, rng)
    return _with_moments(type(participation).__name__, participation, drawn) if drawn.varies else drawn


def checked_draw(participation: Participation, rounds: int, rng: np.random.Generator) -> Schedule:
    """Return a schedule of the scheme, checked, with int32 participants.

    Raises:
        Refusal: if the schedule has a wrong shape, a machine out of range or twice in a round, or an empty round, or if
            its number of machines varies although `varies` is False; if the `draw` of a custom scheme does not take
            `rounds` and `rng`, or uses randomness other than `rng`. Rounds of a secret scheme may be empty.
    """
    name = type(participation).__name__
    own = not of_package(type(participation))
    if own:
        _check_arguments(name, participation.draw, rounds, rng)
    before = deepcopy(rng) if own else rng
    drawn = participation.draw(rounds, rng)
    if type(drawn) is not Schedule:  # a subclass may count other participants
        raise Refusal(f"{name}.draw must give a Schedule, got {type(drawn).__name__}")
    drawn = _as_int32(name, participation, drawn)
    _check_participants(name, participation, drawn, rounds)
    _check_hours(name, drawn, rounds)
    drawn = _with_secrecy(name, participation, drawn, own)
    _check_slots(name, drawn, 0 if participation.secret else 1)
    if drawn.varies and not participation.varies:
        raise Refusal(f"{name}.varies must be True if its schedule has empty slots, got False")
    if own and drawn.participants.size <= MOST_COMPARED:
        _check_reproducible(name, drawn, participation.draw(rounds, before))
    return drawn


def _check_arguments(name: str, draw: Any, *given: Any) -> None:
    taken = inspect.signature(draw)
    try:
        taken.bind(*given)
    except TypeError:
        raise Refusal(f"{name}.draw must take (rounds, rng), got {taken}") from None


def _check_reproducible(name: str, first: Schedule, second: Schedule) -> None:
    """Raise Refusal if two schedules from equal generators differ.

    Seeds must reproduce a schedule, because a sweep's configurations share it and a resumed run samples it again.
    """

    def parts(drawn: Schedule) -> tuple[Any, ...]:
        return drawn.participants, drawn.filled, drawn.dropped, drawn.hours, *(drawn.late or ())

    if not all(np.array_equal(one, other) for one, other in zip(parts(first), parts(second), strict=True)):
        raise Refusal(f"{name}.draw must use no randomness except rng, got different schedules from equal generators")


def _as_int32(name: str, scheme: Participation, drawn: Schedule) -> Schedule:
    """Return the schedule with int32 participants. Differences of unsigned integers would have no sign."""
    rows = drawn.participants
    if not isinstance(rows, np.ndarray) or not np.issubdtype(rows.dtype, np.integer):
        given = rows.dtype if isinstance(rows, np.ndarray) else type(rows).__name__
        raise Refusal(f"{name}.draw must give participants as an array of integers, got {given}")
    if rows.size and (rows.min() < 0 or rows.max() >= scheme.machines):
        raise Refusal(f"{name}.draw must give machines in 0..{scheme.machines - 1}, got {rows.min()}..{rows.max()}")
    return drawn if rows.dtype == np.int32 else replace(drawn, participants=rows.astype(np.int32))


def _check_participants(name: str, scheme: Participation, drawn: Schedule, rounds: int) -> None:
    rows = drawn.participants
    if drawn.machines != scheme.machines:
        raise Refusal(f"{name}.draw must give a schedule of machines ({scheme.machines}), got {drawn.machines}")
    widest = 1 if drawn.announced else scheme.per_round  # announced cohorts are as wide as their largest
    if rows.ndim != 2 or len(rows) != rounds or not widest <= rows.shape[1] <= scheme.per_round:
        wanted = f"[rounds, per_round] = [{rounds}, {scheme.per_round}]"
        raise Refusal(f"{name}.draw must give participants {wanted}, got {list(rows.shape)}")
    if drawn.late is not None:
        _check_late(name, drawn)
        return
    if (np.diff(rows, axis=1) > 0).all():
        return
    ordered = np.sort(rows, axis=1)
    twice = np.argwhere(ordered[:, 1:] == ordered[:, :-1])
    if twice.size:
        round, slot = twice[0]
        given = f"machine {ordered[round, slot]} twice in round {round + 1}"
        raise Refusal(f"{name}.draw must give distinct machines in a round (in empty slots, too), got {given}")


def _check_late(name: str, drawn: Schedule) -> None:
    """Raise Refusal unless every late answer has a version that the server keeps, and a weight."""
    (staleness, weights, versions), shape = drawn.late, drawn.participants.shape  # type: ignore[misc]
    if np.shape(staleness) != shape or np.shape(weights) != shape or staleness.dtype.kind != "i":
        raise Refusal(f"{name}.draw must give staleness (integers) and weights of late answers {list(shape)}")
    oldest = np.minimum(np.arange(shape[0]), versions - 1)[:, None]
    if not ((staleness >= 0) & (staleness <= oldest)).all():
        raise Refusal(f"{name}.draw must give staleness from 0 to the rounds before, below versions ({versions})")
    if not ((weights > 0) & (weights <= 1)).all():
        raise Refusal(f"{name}.draw must give weights of late answers above 0 and at most 1")
    if drawn.varies or drawn.secret is not None:
        raise Refusal(f"{name}.draw must fill all slots of a public schedule if answers are late")


def _with_secrecy(name: str, scheme: Participation, drawn: Schedule, own: bool) -> Schedule:
    """Return the schedule with its scheme if the scheme is secret, so that no custom `draw` can forget it.

    The schedule of a custom scheme never has another scheme's name, and so not its amplification.
    """
    if drawn.secret is not None and not scheme.secret:
        raise Refusal(f"{name}.secret must be True if its schedule is secret, got False")
    return replace(drawn, secret=scheme) if scheme.secret and (own or drawn.secret is None) else drawn


def _check_hours(name: str, drawn: Schedule, rounds: int) -> None:
    """Raise Refusal unless the simulated times of rounds, if there are any, do not decrease."""
    hours = drawn.hours
    if hours is not None and (np.shape(hours) != (rounds,) or not (np.diff(hours, prepend=0.0) >= 0).all()):
        raise Refusal(f"{name}.draw must give hours [{rounds}] that do not decrease, got {list(np.shape(hours))}")


def _check_slots(name: str, drawn: Schedule, least: int) -> None:
    """Raise Refusal if slots have wrong shapes, or a round has fewer than `least` machines."""
    rounds, per_round = drawn.participants.shape
    filled, dropped = drawn.filled, drawn.dropped
    if filled is not None:
        filled = np.asarray(filled)
        if filled.shape != (rounds,) or not np.issubdtype(filled.dtype, np.integer):
            raise Refusal(f"{name}.draw must give filled as integers [{rounds}], got {filled.dtype} {filled.shape}")
        if filled.min() < least or filled.max() > per_round:
            given = f"{filled.min()}..{filled.max()}"
            raise Refusal(f"{name}.draw must fill {least} to {per_round} slots a round, got {given}")
    if dropped is None:
        return
    if np.shape(dropped) != (rounds, per_round) or np.asarray(dropped).dtype != bool:
        raise Refusal(f"{name}.draw must give dropped as bool [{rounds}, {per_round}], got {list(np.shape(dropped))}")
    if least and not drawn.present.any(axis=1).all():
        raise Refusal(f"{name}.draw must leave a machine in every round, got a round in which all drop out")


def _with_moments(name: str, scheme: Participation, drawn: Schedule) -> Schedule:
    if scheme.secret:  # an inverse moment may not exist: rounds may be empty
        expected = float(scheme.mean_size if drawn.expected is None else drawn.expected)
        if not 0 < expected <= drawn.participants.shape[1]:
            raise Refusal(f"{name}.mean_size must be positive and at most per_round, got {expected}")
        return replace(drawn, mean=expected, expected=expected)
    mean = 1 / scheme.inverse_moment() if drawn.mean is None else drawn.mean
    expected = scheme.mean_size if drawn.expected is None else drawn.expected
    for moment, value in (("1/E[1/M]", mean), ("E[M]", expected)):
        if not 1 - 1e-9 <= value <= drawn.participants.shape[1] * (1 + 1e-9):
            raise Refusal(f"{name} must have {moment} from 1 to {drawn.participants.shape[1]} machines, got {value}")
    return replace(drawn, mean=mean, expected=expected)
