"""Methods that an experiment file can name, each with a one-line description."""

from fedprivjax import protocols

PROTOCOLS = {
    "dp_mu2": (
        protocols.DPMu2,
        "DP-μ²-FL (Reshef & Levy): trusted or untrusted server, any participation, clipped or not",
    ),
    "noisy_sgd": (
        protocols.NoisySGD,
        "single-pass noisy SGD, trusted or untrusted server, with or without per-sample clipping",
    ),
    "stale_momentum": (
        protocols.StaleMomentum,
        "per-machine momentum with stale corrections, the paper's alternative 1",
    ),
    "noisy_minibatch_sgd": (
        protocols.NoisyMinibatchSGD,
        "ISRL-DP minibatch SGD, any sampler of records, or with a shuffler",
    ),
    "accelerated_minibatch_sgd": (
        protocols.AcceleratedMinibatchSGD,
        "ISRL-DP AC-SA: plain, regularised, multistage, one-pass",
    ),
    "local_sgd": (protocols.LocalSGD, "local SGD (FedAvg), plain or with noise in every local step"),
    "user_sgd": (
        protocols.UserSGD,
        "SGD on batches of users: behind a shuffler of bits, local, pan-private or trusted server",
    ),
    "user_agd": (
        protocols.UserAGD,
        "AC-SA on batches of users, in phases for strongly convex losses; the same trust models",
    ),
    "tree_momentum": (
        protocols.TreeMomentum,
        "normalised SGD with tree-aggregated momentum, for non-convex losses; any server",
    ),
    "reduced_tree_momentum": (
        protocols.ReducedTreeMomentum,
        "tree momentum of reduced sensitivity, from anchors and differences; cyclic order, smooth losses",
    ),
    "released_minibatch_sgd": (
        protocols.ReleasedMinibatchSGD,
        "minibatch SGD of Lowy & Razaviyayn's released code",
    ),
    "released_local_sgd": (protocols.ReleasedLocalSGD, "local SGD with the noise of Lowy & Razaviyayn's released code"),
}
