from .accelerated_minibatch_sgd import AcceleratedMinibatchSGD
from .dp_mu2 import DPMu2
from .local_sgd import LocalSGD
from .noisy_minibatch_sgd import NoisyMinibatchSGD
from .noisy_sgd import NoisySGD
from .reduced_tree_momentum import ReducedTreeMomentum
from .registry import PROTOCOLS
from .released import ReleasedLocalSGD, ReleasedMinibatchSGD
from .stale_momentum import StaleMomentum
from .tree_momentum import TreeMomentum
from .user_agd import UserAGD
from .user_sgd import UserSGD

__all__ = [
    "PROTOCOLS",
    "AcceleratedMinibatchSGD",
    "DPMu2",
    "LocalSGD",
    "NoisyMinibatchSGD",
    "NoisySGD",
    "ReducedTreeMomentum",
    "ReleasedLocalSGD",
    "ReleasedMinibatchSGD",
    "StaleMomentum",
    "TreeMomentum",
    "UserAGD",
    "UserSGD",
]
