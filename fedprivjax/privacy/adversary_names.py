"""Names of the package's adversaries in experiment files."""

from fedprivjax.privacy.adversaries import (
    Adversary,
    Central,
    FinalModel,
    Local,
    PanPrivate,
    SecureSum,
    Shuffler,
    ThirdParty,
)
from fedprivjax.privacy.coalition import Coalition
from fedprivjax.privacy.neighbours import Neighbours

ADVERSARIES: dict[str, type[Adversary]] = {
    kind.name: kind
    for kind in (Local, Shuffler, PanPrivate, Central, SecureSum, ThirdParty, FinalModel, Coalition, Neighbours)
}
