"""Local SGD of Lowy & Razaviyayn's released code: with the noise of the paper's moments rule."""

from flax import struct

from fedprivjax.protocols.local_sgd import LocalSGD
from fedprivjax.protocols.released.rules import ReleasedRules, released


@struct.dataclass(kw_only=True)
class ReleasedLocalSGD(ReleasedRules, LocalSGD):  # type: ignore[misc]
    """Local SGD with the noise of Lowy & Razaviyayn's released code.

    Attributes:
        noise_rule, acknowledged, claimed_records: as in `ReleasedMinibatchSGD`.

    The other attributes are those of `LocalSGD`.
    """

    theory = released(LocalSGD.theory)
