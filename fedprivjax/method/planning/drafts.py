"""Drafts that several methods share: one pass over a shared dataset, and messages from machines' own records."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.planning.setting import MAX_USES, Setting
from fedprivjax.method.planning.uses import Draft
from fedprivjax.method.record_mechanism import RecordMechanism
from fedprivjax.method.theory import require_choice_of
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import lowy_razaviyayn as theory
from fedprivjax.theory.cheu.agd import geometric_counts

PASSES = 40  # of a pilot run over machines' records, if they are used repeatedly; suits image datasets


def one_pass(method: type, *trusts: str, **settings: Any) -> Callable[[Setting], Iterator[Draft]]:
    """Return drafts of one pass: messages of one record each, or of the setting's batch, with every record used once.

    Args:
        trusts: trust models of the method. If the setting's is not among them, "none" is used if available.
    """

    def drafts(s: Setting) -> Iterator[Draft]:
        own = {"trust": s.trust} if s.trust in trusts else {}
        if not own and "none" in trusts:
            own = {"trust": "none"}
        yield of_pool(method, s, {**own, **settings})

    return drafts


def of_pool(method: type, s: Setting, settings: dict[str, Any]) -> Draft:
    """Return a draft of one pass over a shared dataset, in batches if the setting and the method have `batch`."""
    batch = 1 if s.batch is None or "batch" not in {field.name for field in fields(method)} else s.batch
    rounds, note = one_pass_rounds(s, batch)
    settings = settings if batch == 1 else {**settings, "batch": batch}
    return Draft(method, settings, s.problem, s.pool_plan(rounds, method(**settings).minibatches), note)


def of_records(method: type, s: Setting, settings: dict[str, Any], rounds: int, note: str) -> Draft:
    """Return a draft with messages of several records of a machine."""
    sampler = method(**settings).minibatches
    return Draft(method, settings, s.split, s.outline(sampler, rounds), note)


def theory_rounds(protocol: Any, s: Setting, problem: Problem) -> int:
    """Return the theory's number of rounds for a protocol with all machines in every round."""
    rounds = protocol.theory.choices(protocol, problem).rounds
    return require_choice_of(rounds, "rounds", protocol.name)(s.machines, s.target)


def one_pass_rounds(s: Setting, batch: int = 1) -> tuple[int, str]:
    """Return the number of rounds of a run that uses every record at most once, and a note.

    The number of rounds is the setting's `rounds`. If `rounds` is None, the run is one whole pass over the data. In a
    method comparison, all rounds together use at most `fedprivjax.method.planning.setting.MAX_USES` records, except
    that one round is always allowed. If this limit reduces the number of rounds, the note says so. Otherwise, the note
    is "".

    Args:
        s: setting of the method comparison.
        batch: number of records of a message.

    Raises:
        Refusal: if the setting's `rounds` exceed one pass, or a message has more records than a machine.
    """
    if batch > s.samples:
        raise Refusal(f"batch must be at most samples ({s.samples}), got {batch}")
    most = s.one_pass(batch)
    if s.rounds is not None and s.rounds > most:
        raise Refusal(f"rounds must be at most {most} for one pass of {batch * s.per_round} records, got {s.rounds}")
    return capped(s, most if s.rounds is None else s.rounds, batch)


def capped(s: Setting, rounds: int, batch: int = 1) -> tuple[int, str]:
    """Return the rounds within the limit on planned uses, and a note if they are cut."""
    most = max(1, MAX_USES // (s.per_round * batch))
    return min(rounds, most), f"{most} of {rounds} rounds, more are not planned" if rounds > most else ""


def full_batches(method: type, rounds_of: Callable[[Setting], int]) -> Callable[[Setting], Iterator[Draft]]:
    """Return drafts with all records of a machine in every message, for the theory's number of rounds."""

    def drafts(s: Setting) -> Iterator[Draft]:
        rounds, note = capped(s, rounds_of(s) if s.rounds is None else s.rounds)
        yield of_records(method, s, {"sampler": "full"}, rounds, note)

    return drafts


def disjoint(method: type, **settings: Any) -> Callable[[Setting], Iterator[Draft]]:
    """Return drafts with fresh records of a machine in every message, in the given batch size or in several."""

    def drafts(s: Setting) -> Iterator[Draft]:
        batches = geometric_counts(s.samples, 2.0).tolist() if s.batch is None else [s.batch]
        for batch in batches:
            most = theory.one_pass_rounds(records=s.samples, batch=batch)
            rounds, note = capped(s, most if s.rounds is None else s.rounds)
            if rounds <= most:
                yield of_records(method, s, {"sampler": "disjoint", "batch": batch, **settings}, rounds, note)

    return drafts


def records_of(protocol: Any) -> RecordMechanism:
    """Return the mechanism of a protocol's records: their use in messages, and the noise of messages."""
    return protocol.privacy.records(protocol.rounds.machine_epsilon)


def problem_constants(s: Setting) -> theory.ProblemConstants:
    """Return the constants of the setting that the theorems use."""
    sizes = {"records": s.samples, "per_round": s.per_round, "dimension": s.dimension}
    return theory.ProblemConstants(diameter=s.diameter, lipschitz=s.lipschitz, **sizes)
