"""Planned uses and constants that methods on machines' own records share (Lowy & Razaviyayn's theory)."""

from collections.abc import Callable, Iterator
from typing import Any

from fedprivjax.method.planning.drafts import capped, of_records
from fedprivjax.method.planning.setting import Setting
from fedprivjax.method.planning.uses import Draft
from fedprivjax.method.record_mechanism import RecordMechanism
from fedprivjax.theory import lowy_razaviyayn as theory
from fedprivjax.theory.cheu.agd import geometric_counts

PASSES = 40  # of a pilot run over machines' records, if they are used repeatedly; suits image datasets


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
