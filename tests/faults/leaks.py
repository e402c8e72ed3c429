"""Planted faults that an audit must detect."""

from dataclasses import replace

from faults import clients, messages, noise
from faults.federations import CHOSEN, CLIP, EDGE, EVERYONE, LEAVES, MU, SELDOM, SMALL, TARGET
from faults.row import LEAK, Audited, Fault
from restating import planted

from fedprivjax import (
    AdaptiveClip,
    DPMu2,
    FedAvg,
    Full,
    NoisyMinibatchSGD,
    NoisySGD,
    Scaffold,
    StaleMomentum,
    TreeMomentum,
    Uniform,
    UserSGD,
    Varying,
)
from fedprivjax.auditing.federation import Federation
from fedprivjax.protocols import ReleasedMinibatchSGD

FEW = 5_000  # runs, for faults that few runs detect


def audited(change, faulty, right, **settings):
    """Return a leak that an audit must detect with `FEW` runs, and the correct protocol, audited with more runs.

    Args:
        settings: fields of both audits. With `runs`, both have this number.
    """
    return Fault(change, LEAK, "audit", Audited(faulty, **{"runs": FEW, **settings}), Audited(right, **settings))


TREE = {**TARGET, "trust": "none"}
RECORDS = {"epsilon": 4.0, "clip": CLIP}
LARGE = {"delta": 1e-2, "runs": 20_000}
BITS = {"epsilon": 2.0, "clip": CLIP}
OF_BITS = {"delta": 5e-2, "runs": 20_000, "federation": Federation(Uniform(3, 2), rounds=2, records=4, dimension=4)}
SERVER = {**TARGET, "trust": "server"}

RARE = {"epsilon": 1.0, "clip": CLIP}
MESSAGE = {"epsilon": 2.0, "clip": CLIP, "batch": 6, "clip_at": "message", "step_size": 1e-6}
MACHINES = {
    **{"unit": "machine", "epsilon": 4.0, "update_clip": 0.1},
    **{"local_steps": 1, "step_size": 1.0, "noise_schedule": "tree"},
}
PAPER = {**TARGET, "noise_schedule": "proportional"}
UPDATES = {**clients.MACHINE, "step_size": 0.1, "mu": MU}
EPOCHS = {"unit": "record", "epsilon": 1.0, "clip": CLIP, "local_epochs": 1, "batch": 3, "step_size": 1.0}
SHORT_BATCH = {"delta": 1e-2, "runs": FEW, "federation": Federation(Full(1), rounds=3, records=7, dimension=4)}
ONE_MACHINE = {"runs": FEW, "federation": Federation(Full(1), rounds=4, records=1, dimension=4)}
COHORTS = Federation(Varying.between(3, 1, 3), rounds=6, records=12, dimension=4)


def adapted(trust, clip=AdaptiveClip):
    """Return FedAvg with an adaptive clip that moves slowly, so that one canary stays within it."""
    adaptive = clip(start=1.0, rate=1e-3, count_noise=COUNT_NOISE)
    work = {"local_epochs": 1, "step_size": 1.0}
    return FedAvg(unit="machine", noise_std=Z, trust=trust, update_clip=adaptive, **work)


ROUNDS_CORRELATED = {**clients.MACHINE, "epsilon": 2.0, "noise_schedule": "toeplitz"}
ENCODED = {**clients.MACHINE, "epsilon": 2.0}
LONG = Federation(Full(2), rounds=2, records=1, dimension=25)  # 5 is the root of 25

Z, COUNT_NOISE = 2.0, 1.2  # updates then have 1.8 times the noise of the pair

AUDITS = {
    "half the noise": audited(
        "σ/2 added, σ claimed",
        planted(NoisySGD(**TARGET), noise.HALF_THE_NOISE),
        NoisySGD(**TARGET),
        runs=FEW,
    ),
    "half the cancelled noise": audited(
        "σ/2 added and cancelled", planted(DPMu2(**TARGET), noise.HALF_THE_NOISE), DPMu2(**TARGET)
    ),
    "tree noise over √M": audited(
        "each machine's tree has noise over √M",
        planted(TreeMomentum(alpha=0.2, **TREE), noise.SHARED_TREE_NOISE),
        TreeMomentum(alpha=0.2, **TREE),
        federation=EVERYONE,
    ),
    "a level without noise": audited(
        "a tree's nodes of two rounds have no noise",
        TreeMomentum(factor=noise.WithoutALevel(), **TREE),
        TreeMomentum(**TREE),
        federation=EVERYONE,
    ),
    "add or remove": audited(
        "the sensitivity of add/remove for replace-one", planted(DPMu2(**SERVER), noise.ADD_OR_REMOVE), DPMu2(**SERVER)
    ),
    "the mean's noise": audited(
        "the mean's noise added to a sum",
        planted(NoisySGD(**SERVER), noise.NOISE_OF_THE_MEAN),
        NoisySGD(**SERVER),
    ),
    "a stuck count": audited("r_k with k stuck at 1", planted(DPMu2(**PAPER), noise.STUCK_COUNT), DPMu2(**PAPER)),
    "a budget overspent": audited(
        "exposure above 1, in an event with 1", planted(DPMu2(**TARGET), noise.OVER_SPENT), DPMu2(**TARGET)
    ),
    "a machine counted once": audited(
        "the norm of one column of F for a machine in several rounds",
        planted(FedAvg(**MACHINES), noise.COUNTED_ONCE),
        FedAvg(**MACHINES),
        federation=Federation(Uniform(4, 2), rounds=8, records=12),
        runs=FEW,
    ),
    "growing weights": audited(
        "noise for equal weights where they grow",
        planted(StaleMomentum(**TARGET), noise.NO_GROWTH),
        StaleMomentum(**TARGET),
        federation=SELDOM,
    ),
    "a quarter of the bits": audited(
        "a quarter of the noise bits", planted(UserSGD(**BITS), noise.FEWER_BITS), UserSGD(**BITS), **OF_BITS
    ),
    "rare bits": audited("p/4 in the binomial", planted(UserSGD(**BITS), noise.RARE_BITS), UserSGD(**BITS), **OF_BITS),
    "one key for all rounds": audited(
        "the run's key in every round",
        planted(NoisySGD(**TARGET), noise.KEY_OF_THE_RUN),
        NoisySGD(**TARGET),
    ),
    "one key for all machines": audited(
        "the round's key on every machine", planted(NoisySGD(**TARGET), noise.KEY_OF_THE_ROUND), NoisySGD(**TARGET)
    ),
    "clipped above": audited(
        "clipped where the norm is above 1.05 C",
        planted(NoisySGD(**TARGET), messages.CLIPPED_ABOVE),
        NoisySGD(**TARGET),
        federation=EDGE,
        runs=100_000,
    ),
    "a bias forgotten": audited(
        "biases are not clipped",
        planted(NoisySGD(**TARGET), messages.LEAF_FORGOTTEN),
        NoisySGD(**TARGET),
        federation=LEAVES["bias"],
    ),
    "a kernel forgotten": audited(
        "kernels are not clipped",
        planted(NoisySGD(**TARGET), messages.KERNEL_FORGOTTEN),
        NoisySGD(**TARGET),
        federation=LEAVES["kernel"],
    ),
    "every leaf clipped": Fault(
        "every array of parameters is clipped to C",
        LEAK,
        "audit",
        Audited(planted(NoisySGD(**TARGET), messages.LEAVES_CLIPPED), replace(SMALL, dense=True), FEW),
        Audited(NoisySGD(**TARGET), runs=FEW),
    ),
    "an encoder's own bound": audited(
        "an encoder that lengthens messages five times, said to lengthen none, and no clip of encoded messages",
        planted(FedAvg(encoder=messages.ShortSigns(), **ENCODED | {"batch": 1}), messages.ENCODED_ANYHOW),
        FedAvg(encoder=messages.Signs(), **ENCODED | {"batch": 1}),
        federation=LONG,
        runs=FEW,
    ),
    "correlated as independent": audited(
        "noise of a Toeplitz factor accounted as independent",
        planted(FedAvg(**ROUNDS_CORRELATED), noise.COUNTED_AS_INDEPENDENT),
        FedAvg(**ROUNDS_CORRELATED),
        federation=None,
        runs=FEW,
    ),
    "clipped mean": audited(
        "the mean is clipped, not its records",
        planted(NoisyMinibatchSGD(sampler="full", **RECORDS), messages.CLIPPED_MEAN),
        NoisyMinibatchSGD(sampler="full", **RECORDS),
        delta=1e-2,
    ),
    "whole messages": audited(
        "whole messages clipped, accounted for as records",
        planted(ReleasedMinibatchSGD(sampler="subset", **MESSAGE), messages.COUNTED_AS_RECORDS),
        ReleasedMinibatchSGD(sampler="subset", **MESSAGE),
        **LARGE,
    ),
    "whole messages of Poisson samples": audited(
        "the same of Poisson samples",
        planted(ReleasedMinibatchSGD(sampler="poisson", **MESSAGE), messages.COUNTED_AS_RECORDS),
        ReleasedMinibatchSGD(sampler="poisson", **MESSAGE),
        **LARGE,
    ),
    "used twice": audited(
        "each sample used twice, counted once", planted(NoisySGD(**TARGET), messages.USED_TWICE), NoisySGD(**TARGET)
    ),
    "participation by data": Fault(
        "machines chosen by their data",
        LEAK,
        "audit",
        Audited(NoisySGD(**TARGET), CHOSEN, FEW),
        Audited(NoisySGD(**TARGET), runs=FEW),
    ),
    "a metric released": Fault(
        "the mean norm before clipping released",
        LEAK,
        "audit",
        Audited(NoisySGD(**TARGET), runs=FEW, public=("message_norm",)),
        Audited(NoisySGD(**TARGET), runs=FEW),
    ),
    "momentum without noise": audited(
        "the query point carries the momentum without its noise", messages.UNNOISED_MOMENTUM(**SERVER), DPMu2(**SERVER)
    ),
    "public samples": audited(
        "sampled indices public, amplification claimed",
        planted(NoisyMinibatchSGD(sampler=messages.PublicSubset(1), **RARE), messages.PUBLIC_SAMPLES),
        NoisyMinibatchSGD(batch=1, **RARE),
        **LARGE,
    ),
    "a replaced machine's C": audited(
        "a replaced machine is said to move its update by C",
        planted(FedAvg(**UPDATES), clients.HALF_THE_MOVE),
        FedAvg(**UPDATES),
        runs=FEW,
    ),
    "a machine's rounds once": audited(
        "a machine of four rounds counted as one of one",
        planted(FedAvg(**UPDATES), clients.COUNTED_ONCE),
        FedAvg(**UPDATES),
        runs=FEW,
    ),
    "the number who came": audited(
        "clipped updates divided by the number of machines that came",
        planted(FedAvg(**UPDATES), clients.OWN_COHORT),
        FedAvg(**UPDATES),
        runs=FEW,
        federation=COHORTS,
    ),
    "the clip shows the count": audited(
        "the clip adapts to a count without noise",
        planted(adapted("server"), messages.BIT_WITHOUT_NOISE),
        adapted("server"),
        **ONE_MACHINE,
    ),
    "a bit on top": audited(
        "updates with the noise of the pair, and bits on top, at the server",
        adapted("server", clip=messages.MultiplierOfUpdates),
        adapted("server"),
        **ONE_MACHINE,
    ),
    "a machine's bit on top": audited(
        "updates with the noise of the pair, and bits on top, at the machines",
        adapted("none", clip=messages.MultiplierOfUpdates),
        adapted("none"),
        **ONE_MACHINE,
    ),
    "a short batch's own length": audited(
        "the last batch of an epoch divided by its own length",
        planted(FedAvg(**EPOCHS), clients.OWN_LENGTH),
        FedAvg(**EPOCHS),
        **SHORT_BATCH,
    ),
    "a message's part without noise": audited(
        "a control variate sent without noise",
        clients.QUIET_CONTROL(**EPOCHS),
        Scaffold(**EPOCHS),
        **SHORT_BATCH,
    ),
}
