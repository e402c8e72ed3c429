"""Local SGD of Lowy & Razaviyayn's released code: with the noise of the paper's moments rule."""

from dataclasses import replace

from flax import struct

from fedprivjax.method.planning.uses import Use
from fedprivjax.method.record_mechanism import RecordMechanism
from fedprivjax.protocols.local_sgd import LocalSGD
from fedprivjax.protocols.released.rules import NOT_PLANNED, check_released_rule


@struct.dataclass
class ReleasedLocalSGD(LocalSGD):
    """Local SGD with the released code's noise.

    Attributes:
        noise_rule, acknowledged, claimed_records: as in `ReleasedMinibatchSGD`.

    The other attributes are those of `LocalSGD`.
    """

    acknowledged: bool = struct.field(pytree_node=False, default=False)
    claimed_records: int | None = struct.field(pytree_node=False, default=None)

    not_planned = NOT_PLANNED

    def _check_rule(self) -> None:
        check_released_rule(self)

    @property
    def target_is_claim(self) -> bool:  # type: ignore[override]
        return self.acknowledged and self.noise_rule == "paper_moments"

    @property
    def records(self) -> RecordMechanism:
        claims = {"acknowledged": self.acknowledged, "claimed_records": self.claimed_records}
        return replace(LocalSGD.records.fget(self), noise_rule=self.noise_rule, **claims)  # type: ignore[misc]

    @property
    def traced(self):
        unclaimed = replace(self, acknowledged=False, claimed_records=None)  # first: these require their noise rule
        return LocalSGD.traced.fget(unclaimed)  # type: ignore[misc]

    @classmethod
    def uses(cls) -> tuple[Use, ...]:
        return ()

    def scaled_down(self, machines: int):
        """Scale down as in `Protocol.scaled_down`, with the claim for the machines' actual numbers of records."""
        return replace(super().scaled_down(machines), claimed_records=None)
