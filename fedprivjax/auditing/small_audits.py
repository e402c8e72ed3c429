"""Audits of a protocol's scaled-down form on small federations, one for each kind of participation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedprivjax.auditing import neighbouring
from fedprivjax.auditing.audit import LEAST, Audit, audit
from fedprivjax.auditing.federation import Federation
from fedprivjax.method.small_form import scaled_down
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.problem.models import Clipping

PARTICIPATIONS = (neighbouring.FIXED, neighbouring.VARYING, neighbouring.DROPOUTS, neighbouring.SECRET)
FEWER = 0.4  # runs with other participation, as a fraction of those with a fixed cohort


def small_audits(
    label: str,
    protocol: Any,
    progress: Any = None,
    *,
    runs: int,
    rounds: int,
    seed: int,
    delta: float,
    verdict: float,
    folder: Path | None,
    participation: Sequence[str] = PARTICIPATIONS,
    loss: str | None = None,
    clipping: Clipping | None = None,
) -> dict[str, Audit]:
    """Audit a protocol's scaled-down form on neighbouring datasets of small federations, and return audits by label.

    Federations that the protocol does not allow are left out.

    Args:
        label: label of the protocol.
        progress: progress callback, called with (finished runs, all runs), or None.
        runs: runs with each of the two datasets, for a fixed cohort and for the first kind; other kinds have fewer.
        rounds: rounds of a run for the first kind of participation; other kinds have a third.
        seed: seed of the audits.
        delta: δ of all bounds.
        verdict: error probability of the outcome of all audits together.
        folder: folder of the runs' cache, or None.
        participation: kinds of participation in `PARTICIPATIONS`.
        loss: loss of all federations. None is linear with a fixed cohort or without a clip, else quadratic.
        clipping: computation of clipped gradients, as in `Federation`.

    Raises:
        Refusal: if no kind of participation is allowed, or the audit of an allowed one is refused.
    """
    small = scaled_down(protocol, neighbouring.machines_of(protocol))
    federations = _federations(small, rounds, participation, loss)
    found = {}
    for kind, federation in federations.items():
        name = audit_label(label, kind)
        cache = None if folder is None else folder / "runs" / name.replace("/", "-")
        whole = kind in (neighbouring.FIXED, participation[0])
        options = {"runs": runs if whole else max(min(runs, LEAST), int(FEWER * runs)), "clipping": clipping}
        options |= {"delta": delta, "seed": seed, "verdict": verdict / len(federations)}
        found[name] = audit(small, federation, folder=cache, progress=progress, **options)
    return found


def audit_label(label: str, participation: str) -> str:
    """Return the label of a protocol's audit with a kind of participation."""
    return label if participation == neighbouring.FIXED else f"{label}, {participation}"


def _federations(protocol: Any, rounds: int, participation: Sequence[str], loss: str | None) -> dict[str, Federation]:
    """Return the federations that a protocol is audited on, by the kind of participation."""
    other = neighbouring.LINEAR if privacy_of(protocol).clip is None else neighbouring.QUADRATIC
    found: dict[str, Federation] = {}
    reason = None
    for kind in participation:
        chosen = loss or (neighbouring.LINEAR if kind == neighbouring.FIXED else other)
        shorter = rounds if kind == participation[0] else -(-rounds // 3)
        try:
            found[kind] = neighbouring.small_federation(protocol, shorter, participation=kind, loss=chosen)
        except neighbouring.NotAllowed as refusal:
            reason = refusal
    if reason is not None and not found:
        raise neighbouring.NotAllowed(f"nothing was audited with participation {' or '.join(participation)}: {reason}")
    return found
