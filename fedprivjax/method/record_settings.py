"""Base of the settings of methods that protect a machine's own records, by noisy means or noisy local steps."""

from collections.abc import Collection
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

from flax import struct

from fedprivjax.method.noisy_records import NoisyRecords
from fedprivjax.method.protocol import Levels
from fedprivjax.method.record_mechanism import RecordMechanism
from fedprivjax.method.record_privacy import OwnRecords, RecordFields, check_machine_targets, check_record_settings
from fedprivjax.method.relative_privacy import shared_privacy
from fedprivjax.method.small_form import BATCH
from fedprivjax.privacy.noise_rules import THEOREM_RULES


@struct.dataclass(kw_only=True)
class RecordSettings(RecordFields, Levels):
    """Settings of methods that protect records of machines, with one ε for all machines or one for each.

    `NoisyMinibatchSGD` documents the fields.

    Attributes:
        rules: noise rules of the method.
    """

    epsilon: Any = struct.field(default=None, metadata={"traced": None})

    rules: ClassVar[Collection[str]] = THEOREM_RULES
    examples: ClassVar = (
        {"clip": 1.0, "batch": BATCH},
        {"clip": 1.0, "batch": 1},
        {"clip": 1.0, "batch": None, "sampler": "full"},
    )

    trust = "none"

    if TYPE_CHECKING:

        @property
        def rounds(self) -> Any: ...

    def __post_init__(self):
        check_record_settings(self, self.rules)
        ratios = shared_privacy(self.relative_privacy, self.trust)
        object.__setattr__(self, "relative_privacy", ratios)
        check_machine_targets(self, ratios)
        _ = self.privacy  # raises Refusal if no theorem covers the settings

    @property
    def privacy(self) -> Any:
        """Noise on means over machines' own records."""
        return NoisyRecords(**self._shared)

    @property
    def rule(self) -> Any:
        """Noise rule of the privacy object."""
        return self.noise_rule

    @property
    def _shared(self) -> dict[str, Any]:
        """Settings of the privacy object by name."""
        return {one.name: getattr(self, one.name) for one in fields(OwnRecords)} | {"noise_rule": self.rule}

    @property
    def records(self) -> RecordMechanism:
        """Mechanism of the records: their use in messages, and the noise of messages."""
        return self.privacy.records(self.rounds.machine_epsilon)
