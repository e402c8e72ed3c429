"""Planned uses and error bounds that the methods with a private momentum share."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.planning.bounds import GRADIENT, STATIONARITY, Bound, PlannedRun
from fedprivjax.method.planning.drafts import theory_rounds
from fedprivjax.method.planning.setting import MAX_USES, Setting
from fedprivjax.method.planning.uses import Draft
from fedprivjax.theory import tran_cutkosky

MAX_EPOCHS = 64  # the theorem's own number is huge
LAST = "last"  # iterate that a pilot run reports instead of the output, which is a random iterate for the theorem


def epochs_of_records(method: type, sampler: str, least: int) -> Callable[[Setting], Iterator[Draft]]:
    """Return drafts of whole epochs over machines' own records, in the number that theory chooses.

    Args:
        least: smallest number of epochs.
    """

    def drafts(s: Setting) -> Iterator[Draft]:
        trust = "server" if s.trust == "server" else "none"
        if trust == "none" and not s.full:
            raise Refusal(
                f"per_round must be machines ({s.machines}) without a trusted server, because a machine's tree has a "
                f"leaf in every round, got {s.per_round}"
            )
        settings = {"trust": trust, "sampler": sampler, "batch": s.batch or 1}
        protocol: Any = method(**settings)
        epoch = s.samples // settings["batch"]
        rounds, note = s.rounds, ""
        if rounds is None:
            rounds, note = _epochs(protocol, s, epoch, least)
        yield Draft(method, settings, s.owned, s.epochs(protocol.minibatches, rounds), note)

    return drafts


def _epochs(protocol: Any, s: Setting, epoch: int, least: int) -> tuple[int, str]:
    """Return the theory's rounds in whole epochs, capped at the planned number of uses, and a note if they differ."""
    most = min(MAX_EPOCHS, MAX_USES // (s.per_round * s.samples))
    try:
        best = theory_rounds(protocol, s, s.owned) // epoch
    except Refusal:
        best = 0  # the theorem chooses less than one epoch
    epochs = max(least, min(best, most))
    return epochs * epoch, "" if epochs == best else f"{epochs} epochs, the theorem has {best or 'less than one'}"


def momentum_constants(
    run: PlannedRun,
) -> tuple[tran_cutkosky.ProblemConstants, tran_cutkosky.MomentumSettings, dict[str, float]]:
    """Return the constants of the problem, the settings, and the initial gap and noise of a run with momentum."""
    s, protocol, size = run.setting, run.protocol, run.plan.size
    losses = {"lipschitz": s.lipschitz, "smoothness": s.smoothness}
    problem = tran_cutkosky.ProblemConstants(records=int(protocol.epoch), dimension=s.dimension, **losses)
    settings = tran_cutkosky.MomentumSettings(size.rounds, float(protocol.alpha), run.step)
    noise = float(np.mean(np.sqrt(s.dimension * protocol.noise_variances(size))))
    return problem, settings, {"gap": s.first_gap, "noise": noise}


def gradient_bound(bound: tran_cutkosky.GradientBound, theorem: str) -> Bound:
    """Return a theorem's bound on the mean norm of the gradient, term by term."""
    terms = {
        "optimisation": float(bound.optimisation + bound.start),
        "sampling": float(bound.variance),
        "noise": float(bound.noise),
        "bias": float(bound.bias),
    }
    return Bound(GRADIENT, STATIONARITY, f"Tran & Cutkosky 2022, {theorem}", terms)
