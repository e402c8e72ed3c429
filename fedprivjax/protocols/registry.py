"""Methods that an experiment file can name, each with a one-line description."""

from fedprivjax import protocols

METHODS: dict[str, type] = {
    "dp_mu2": protocols.DPMu2,
    "noisy_sgd": protocols.NoisySGD,
    "stale_momentum": protocols.StaleMomentum,
    "noisy_minibatch_sgd": protocols.NoisyMinibatchSGD,
    "accelerated_minibatch_sgd": protocols.AcceleratedMinibatchSGD,
    "fedavg": protocols.FedAvg,
    "scaffold": protocols.Scaffold,
    "local_sgd": protocols.LocalSGD,
    "user_sgd": protocols.UserSGD,
    "user_agd": protocols.UserAGD,
    "tree_momentum": protocols.TreeMomentum,
    "reduced_tree_momentum": protocols.ReducedTreeMomentum,
    "released_minibatch_sgd": protocols.ReleasedMinibatchSGD,
    "released_local_sgd": protocols.ReleasedLocalSGD,
}
PROTOCOLS = {name: (method, str(method.__doc__).splitlines()[0].rstrip(".")) for name, method in METHODS.items()}
