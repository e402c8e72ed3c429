"""Methods and algorithms that an experiment file can name, each with a one-line description."""

from collections.abc import Mapping

from fedprivjax import protocols
from fedprivjax.method.gossip import Gossip
from fedprivjax.protocols.accelerated_minibatch_sgd import AcceleratedSGD
from fedprivjax.protocols.dp_mu2 import Mu2
from fedprivjax.protocols.fedavg import LocalGradientSteps
from fedprivjax.protocols.noisy_sgd import SGD
from fedprivjax.protocols.scaffold import ControlVariates
from fedprivjax.protocols.staged import Staged
from fedprivjax.protocols.stale_momentum import Stale

METHODS: dict[str, type] = {
    "dp_mu2": protocols.DPMu2,
    "noisy_sgd": protocols.NoisySGD,
    "stale_momentum": protocols.StaleMomentum,
    "noisy_minibatch_sgd": protocols.NoisyMinibatchSGD,
    "accelerated_minibatch_sgd": protocols.AcceleratedMinibatchSGD,
    "fedavg": protocols.FedAvg,
    "scaffold": protocols.Scaffold,
    "local_sgd": protocols.LocalSGD,
    "dsgd": protocols.DSGD,
    "user_sgd": protocols.UserSGD,
    "user_agd": protocols.UserAGD,
    "tree_momentum": protocols.TreeMomentum,
    "reduced_tree_momentum": protocols.ReducedTreeMomentum,
    "released_minibatch_sgd": protocols.ReleasedMinibatchSGD,
    "released_local_sgd": protocols.ReleasedLocalSGD,
}
ALGORITHM_CLASSES: dict[str, type] = {
    "sgd": SGD,
    "mu2": Mu2,
    "stale_mu2": Stale,
    "accelerated_sgd": AcceleratedSGD,
    "local_gradient_steps": LocalGradientSteps,
    "control_variates": ControlVariates,
    "feddyn": protocols.FedDyn,
    "fedexp": protocols.FedExP,
    "fednova": protocols.FedNova,
    "ditto": protocols.Ditto,
    "fedper": protocols.FedPer,
    "mimelite": protocols.MimeLite,
    "proxskip": protocols.ProxSkip,
    "dpzero": protocols.DPZero,
    "gossip": Gossip,
    "staged": Staged,
}


def _described(classes: Mapping[str, type]) -> dict[str, tuple[type, str]]:
    """Return every class with the first line of its docstring."""
    return {name: (one, str(one.__doc__).splitlines()[0].rstrip(".")) for name, one in classes.items()}


PROTOCOLS = _described(METHODS)
ALGORITHMS = _described(ALGORITHM_CLASSES)  # for a pair with a privacy object
