"""The noise rules of released code."""

from typing import Any

from flax import struct

from fedprivjax.checks.numbers import host_only
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_flag
from fedprivjax.method.theory import Theory
from fedprivjax.privacy.noise_rules import NOISE_RULES, PaperMoments


@struct.dataclass(kw_only=True)
class ReleasedRules:
    """Mixin of methods with `RecordSettings` for the noise rules of released code, whose claimed ε need not hold.

    `ReleasedMinibatchSGD` documents the fields.
    """

    acknowledged: bool = host_only(False)
    claimed_records: int | None = host_only(None, small=lambda _: None)

    rules = NOISE_RULES

    def __post_init__(self: Any):
        super().__post_init__()  # type: ignore[misc]
        require_flag("acknowledged", self.acknowledged)
        for name in ("server", "local"):
            if (optimizer := getattr(self, name, None)) is not None:
                raise Refusal(f"{name} must be left out: the released code has no optimiser, got {optimizer}")
        if self.claimed_records is not None and self.noise_rule != "paper_moments":
            raise Refusal(f"claimed_records must go with noise_rule 'paper_moments', got {self.noise_rule!r}")

    @property
    def target_is_claim(self: Any) -> bool:
        return self.acknowledged and self.noise_rule == "paper_moments"

    @property
    def rule(self: Any) -> Any:
        """Noise rule of the privacy object."""
        if self.noise_rule != "paper_moments":
            return self.noise_rule
        return PaperMoments(self.acknowledged, self.claimed_records)


def released(theory: Theory) -> Theory:
    """Return the default step of a theory, for released code that is not planned."""
    why = "released code, whose noise follows published rules with an ε that does not hold"
    return Theory(step=theory.step, not_planned=why)
