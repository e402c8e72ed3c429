"""Names of the package's adversaries in experiment files."""

from fedprivjax.privacy.adversaries import OF_TRUST, Adversary, FinalModel, SecureSum, ThirdParty
from fedprivjax.privacy.coalition import Coalition
from fedprivjax.privacy.neighbours import Neighbours

_KINDS = (*(type(one) for one in OF_TRUST), SecureSum, ThirdParty, FinalModel, Coalition, Neighbours)
ADVERSARIES: dict[str, type[Adversary]] = {kind.name: kind for kind in _KINDS}
