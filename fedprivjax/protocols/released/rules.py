"""The noise rules of released code."""

from typing import Any

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_flag

NOT_PLANNED = "released code, whose noise follows published rules with an ε that does not hold"


def check_released_rule(protocol: Any) -> None:
    """Raise Refusal for a server optimiser, or for settings that do not belong to the noise rule."""
    require_flag("acknowledged", protocol.acknowledged)
    if protocol.server is not None:
        raise Refusal(f"server must be left out: the released code has no optimiser, got {protocol.server}")
    if protocol.claimed_records is not None and protocol.noise_rule != "paper_moments":
        raise Refusal(f"claimed_records must go with noise_rule 'paper_moments', got {protocol.noise_rule!r}")
