"""The methods that an experiment file can name."""

from fedprivjax.protocols.accelerated_minibatch_sgd import AcceleratedMinibatchSGD
from fedprivjax.protocols.dp_mu2 import DPMu2
from fedprivjax.protocols.local_sgd import LocalSGD
from fedprivjax.protocols.noisy_minibatch_sgd import NoisyMinibatchSGD
from fedprivjax.protocols.noisy_sgd import NoisySGD
from fedprivjax.protocols.reduced_tree_momentum import ReducedTreeMomentum
from fedprivjax.protocols.released import ReleasedLocalSGD, ReleasedMinibatchSGD
from fedprivjax.protocols.stale_momentum import StaleMomentum
from fedprivjax.protocols.tree_momentum import TreeMomentum
from fedprivjax.protocols.user_agd import UserAGD
from fedprivjax.protocols.user_sgd import UserSGD

PROTOCOLS = {
    "dp_mu2": (DPMu2, "DP-μ²-FL (Reshef & Levy): trusted or untrusted server, any participation, clipped or not"),
    "noisy_sgd": (NoisySGD, "single-pass noisy SGD, trusted or untrusted server, with or without per-sample clipping"),
    "stale_momentum": (StaleMomentum, "per-machine momentum with stale corrections, the paper's alternative 1"),
    "noisy_minibatch_sgd": (NoisyMinibatchSGD, "ISRL-DP minibatch SGD, any sampler of records, or with a shuffler"),
    "accelerated_minibatch_sgd": (AcceleratedMinibatchSGD, "ISRL-DP AC-SA: plain, regularised, multistage, one-pass"),
    "local_sgd": (LocalSGD, "local SGD (FedAvg), plain or with noise in every local step"),
    "user_sgd": (UserSGD, "SGD on batches of users: behind a shuffler of bits, local, pan-private or trusted server"),
    "user_agd": (UserAGD, "AC-SA on batches of users, in phases where strongly convex; the same trust models"),
    "tree_momentum": (
        TreeMomentum,
        "normalised SGD with tree-aggregated momentum, for non-convex losses; any server",
    ),
    "reduced_tree_momentum": (
        ReducedTreeMomentum,
        "tree momentum of reduced sensitivity, from anchors and differences; cyclic order, smooth losses",
    ),
    "released_minibatch_sgd": (ReleasedMinibatchSGD, "minibatch SGD as Lowy & Razaviyayn's released code runs it"),
    "released_local_sgd": (ReleasedLocalSGD, "local SGD with the noise of Lowy & Razaviyayn's released code"),
}
