"""Event of a run against an adversary other than that of its trust model."""

from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.restated import of_package
from fedprivjax.plan.schedule import Schedule
from fedprivjax.privacy.accountants.integer_sums import DISTRIBUTIONS
from fedprivjax.privacy.adversaries import BY_TRUST, Adversary, composed, is_plain_sum
from fedprivjax.privacy.events import Event, GaussianEvent
from fedprivjax.privacy.integer_event import IntegerEvent
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.record_event import RecordEvent
from fedprivjax.privacy.terms import Assumption
from fedprivjax.privacy.views import SentNoise

SUMS = "linear functions of each round's noisy messages are one Gaussian mechanism"
PROCESSED = "against {adversary} by post-processing"


def event_against(
    adversary: Adversary, event: Event, sent: SentNoise | None, schedule: Schedule, *, independent: bool
) -> Event:
    """Return the event of a run against an adversary.

    The other machines' noise counts if the noise of each message is known and Gaussian, or of integers of which the
    adversary sees sums. Otherwise the guarantee is that of the trust model, because this adversary's view is a function
    of the view there.

    Args:
        event: event against the adversary of the trust model.
        sent: noise of the messages that machines send, or None if no theorem is known for functions of them.
        independent: True if noise and samples of one machine are independent of those of the others.

    Raises:
        Refusal: no theorem covers the adversary with this trust model or noise.
    """
    terms = event.terms
    if terms.trust not in adversary.trusts:
        usual = " or ".join(repr(one) for one in adversary.trusts)
        raise Refusal(
            f"adversary must be one for trust = {terms.trust!r}, got {adversary}, which goes with trust = {usual}. Set "
            f"trust, or leave out adversary"
        )
    named = {} if adversary == BY_TRUST[terms.trust] else {"adversary": str(adversary), "sees": adversary.text}
    shared = not independent if sent is None else sent.covariance is not None
    if sent is not None:
        sent.check(schedule.participants.shape)
        found = _exposures(adversary, sent, schedule)
        summed = None
        if isinstance(event, IntegerEvent) and is_plain_sum(getattr(adversary, "server", adversary), sent):
            summed = DISTRIBUTIONS[event.distribution].summed
        if found is not None and (summed or isinstance(event, GaussianEvent | RecordEvent)):
            assumed = (*terms.assumptions, Assumption("noise of others", {"besides": adversary.besides}))
            theorem = f"{terms.theorem}; {summed or SUMS}"
            terms = replace(terms, theorem=theorem, assumptions=assumed, **named)
            if isinstance(event, RecordEvent | IntegerEvent):
                return event.hidden(found, composed(np.sqrt(sent.variances), sent, schedule), terms)
            assert isinstance(event, GaussianEvent)
            releases = partial(adversary.releases, sent, schedule)
            return replace(event, exposure=Grouped.of(found), releases=releases, terms=terms, in_order=False)
    if adversary.knows_seeds and shared:
        raise Refusal(
            f"adversary must not know seeds if the noise of machines may depend on that of others in an unknown "
            f"way, got {adversary}. Define sent_noise(facts) in the privacy object, and a GaussianEvent"
        )
    theorem = f"{terms.theorem}; {PROCESSED.format(adversary=adversary)}"
    return event.restated(replace(terms, theorem=theorem, **named))


def _exposures(adversary: Adversary, sent: SentNoise, schedule: Schedule) -> Any:
    """Return the exposures of machines, or None, computed once per schedule for noise of the package.

    They are kept by adversary, not by its equality, which a custom class may define.
    """
    covariance = sent.covariance
    if not (covariance is None or of_package(type(covariance))):
        return adversary.exposures(sent, schedule)
    variances = sha256(np.ascontiguousarray(sent.variances).tobytes()).digest()
    key = "exposures", id(adversary), covariance, sent.once, variances
    return schedule.once(key, lambda: (adversary, adversary.exposures(sent, schedule)))[1]
