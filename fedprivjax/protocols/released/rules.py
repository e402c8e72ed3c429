"""The noise rules of released code."""

from typing import Any

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_flag

NOT_PLANNED = "other groups' code, whose noise is by published rules that do not give the ε that they claim"


def check_released_rule(protocol: Any) -> None:
    """Refuse a rule's settings beside another rule."""
    require_flag("acknowledged", protocol.acknowledged)
    if protocol.server is not None:
        raise Refusal(f"server must be left out: the released code has no optimiser, got {protocol.server}")
    if protocol.claimed_records is not None and protocol.noise_rule != "paper_moments":
        raise Refusal(f"claimed_records must go with noise_rule 'paper_moments', got {protocol.noise_rule!r}")
