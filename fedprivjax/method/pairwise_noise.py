"""Pairwise noise as a setting of privacy objects of messages: refusals, the noise that is sent, and its assumption."""

from dataclasses import replace
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.noise.pairwise import Pairwise
from fedprivjax.plan.schedule import Schedule
from fedprivjax.privacy.events import Event
from fedprivjax.privacy.terms import Assumption
from fedprivjax.privacy.views import SentNoise

DECOR = "pairwise noise of Allouah et al. 2024 (DECOR)"


class TakesPairwise:
    """Members of privacy objects whose setting `noise` may be a `Pairwise`."""

    noise: Any

    @property
    def shares_noise(self) -> bool:
        """True if machines share noise in addition to their own."""
        return isinstance(self.noise, Pairwise)

    @property
    def for_machines(self) -> int | None:
        """Number of machines of the graph, or None for any number."""
        return self.noise.nodes if isinstance(self.noise, Pairwise) else None


def require_pairwise(noise: Pairwise, trust: str | None, **left_out: Any) -> None:
    """Raise Refusal unless machines send their messages themselves, and settings that no proof covers are left out."""
    if trust != "none":
        raise Refusal(f"trust must be 'none' with {noise}, whose noise machines add to their messages, got {trust!r}")
    for name, value in left_out.items():
        if value is not None:
            raise Refusal(f"{name} must be left out with {noise}, got {value!s:.60}")


def sent_by(noise: Any, relative: np.ndarray, schedule: Schedule, *, once: bool) -> SentNoise:
    """Return the noise of the messages of machines with own, independent noise, or with pairwise noise in addition.

    Args:
        noise: a `Pairwise`, or another setting for independent noise.
        relative: relative own noise of the machines, [machines].
        once: as in `SentNoise`.
    """
    variances = relative[schedule.participants] ** 2
    if not isinstance(noise, Pairwise):
        return SentNoise(variances, once)
    return SentNoise(variances, once, noise.covariance(relative), cancels=True)


def assuming_pairs(event: Event, noise: Any) -> Event:
    """Return an event with the source and the assumption of pairwise noise, or the event itself without it."""
    if not isinstance(noise, Pairwise):
        return event
    restated = event.restated(replace(event.terms, theorem=f"{event.terms.theorem}; {DECOR}"))
    return restated.assuming(Assumption("pairwise noise", {"graph": str(noise.graph), "shared": noise.shared}))
