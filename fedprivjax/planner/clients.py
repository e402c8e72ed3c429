"""Candidates of a comparison with unit = "machine": methods that clip a machine's whole update.

A machine passes once over its records in a round. No theory gives a clip or a step, so a pilot run chooses them.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from fedprivjax.method.local_release import LocalPrivacy
from fedprivjax.method.planning.drafts import capped
from fedprivjax.method.planning.setting import Setting
from fedprivjax.method.planning.uses import Draft, Use
from fedprivjax.method.protocol import Protocol
from fedprivjax.plan.samplers import LocalEpochs
from fedprivjax.protocols import FedAvg, FedDyn, FedExP, MimeLite, Scaffold

CLIENT_METHODS = {"fedavg": FedAvg, "scaffold": Scaffold}
CLIENT_ALGORITHMS = {"feddyn": FedDyn, "fedexp": FedExP, "mimelite": MimeLite}
USES: dict[str, dict[str, dict[str, Any]]] = {"fedavg": {"": {}, "correlated noise": {"noise_schedule": "toeplitz"}}}
CLIPS, STEPS = (1.0, 0.3, 3.0, 10.0), (3.0, 10.0, 30.0)  # of updates and of local steps; features have norm at most 1
ROUNDS, BATCH = 100, 10  # if none are given


def client_uses(name: str) -> list[Use]:
    """Return the uses of a method or an algorithm with unit = "machine", or [] if it has no such form."""
    if name not in {*CLIENT_METHODS, *CLIENT_ALGORITHMS}:
        return []
    return [Use(use, partial(_drafts, name, own)) for use, own in USES.get(name, {"": {}}).items()]


def _drafts(name: str, own: dict[str, Any], s: Setting) -> Iterator[Draft]:
    work = LocalEpochs(1, min(BATCH, s.samples) if s.batch is None else s.batch)
    method = CLIENT_METHODS.get(name, Protocol)

    def settings(clip: float, step: float) -> dict[str, Any]:
        private = {"unit": "machine", "trust": s.trust, "update_clip": clip}
        if method is not Protocol:
            return {**private, "local_epochs": work.epochs, "batch": work.batch, "step_size": step, **own}
        return {
            "algorithm": CLIENT_ALGORITHMS[name](),
            "privacy": LocalPrivacy(work=work, **private),
            "step_size": step,
        }

    tuned = {f"update_clip {clip:g}, step {step:g}": settings(clip, step) for clip in CLIPS for step in STEPS}
    first, *_ = tuned.values()
    rounds, note = capped(s, ROUNDS if s.rounds is None else s.rounds)
    stated = f"noise_std is that of update_clip {CLIPS[0]:g}, and proportional to it; no step is proved"
    plan = s.outline(method(**first).minibatches, rounds)
    yield Draft(method, first, s.split, plan, "; ".join(filter(None, (note, stated))), tuned)
