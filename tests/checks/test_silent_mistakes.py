"""Input that would silently give other results, or a raw exception: each gives one line before anything is compiled."""

import re
from typing import Any

import numpy as np
import optax
import pytest

import fedprivjax
from fedprivjax import (
    MLP,
    Ball,
    Box,
    Cohorts,
    DPMu2,
    FedAvg,
    Full,
    NoisyMessages,
    NoisyMinibatchSGD,
    NoisySGD,
    Refusal,
    ServerOptimizer,
    Uniform,
    UserSGD,
    datasets,
    draw_plan,
    from_dataset,
    ready,
    simulate,
    sweep,
    table,
)
from fedprivjax.engine import simulate as simulation
from fedprivjax.engine.finished_run import SavedRun
from fedprivjax.engine.published import TELLS_SIZE
from fedprivjax.noise.server_factors import OptimalFactor
from fedprivjax.plan.schedule import Schedule
from fedprivjax.sweeps import execute as sweeping

X = np.random.default_rng(0).uniform(-0.5, 0.5, (60, 3))
Y = np.arange(60) % 3
DATA = datasets.from_arrays(X, Y, feature_bound=1.0, classes=3)
PROBLEM = from_dataset(DATA, constraint=Ball(2.0), partition_table=np.arange(60).reshape(6, 10))
ALL = Full(6)
LOCAL: dict[str, Any] = {"local_epochs": 1, "step_size": 0.1}
HELD = "must be between 1.18e-38 and 3.4e+38, as float32 holds, got "
SCHEDULE = (
    "server_step must be a number, or a schedule: a function from a round, from 0, to a number of at least 0, got "
)


def run(method, **options):
    return simulate(method, PROBLEM, ALL, rounds=2, **options)


def served(server_step):
    return FedAvg(**LOCAL, server=ServerOptimizer("sgd"), server_step=server_step)


REFUSED = {
    "classes taken for numbers": (
        lambda: datasets.from_arrays(X, Y, feature_bound=1.0),
        "labels must be 0 … k − 1 with classes = k, or floats for regression, got the 3 integers 0, 1, 2",
    ),
    "truth values taken for numbers": (
        lambda: datasets.from_arrays(X, Y > 1, feature_bound=1.0),
        "labels must be 0 … k − 1 with classes = k, or floats for regression, got the 2 truth values False, True",
    ),
    "no alpha of a Dirichlet split": (
        lambda: datasets.partition(Y, 6, kind="dirichlet"),
        "alpha must be given for a Dirichlet distribution, got none. Set it, for example to 0.5",
    ),
    "no alpha of Dirichlet sizes": (
        lambda: datasets.partition(Y, 6, sizes="dirichlet"),
        "alpha must be given for a Dirichlet distribution, got none",
    ),
    "an alpha that no distribution takes": (
        lambda: datasets.partition(Y, 6, kind="iid", alpha=0.5),
        "alpha must go with kind or sizes 'dirichlet', got kind 'iid'. Leave it out",
    ),
    "truth values for numbers": (
        lambda: sweep(NoisySGD(clip=1.0), PROBLEM, ALL, over={"epsilon": [True]}),
        "epsilon must be swept over a list of numbers, got [True]",
    ),
    "a truth value among numbers": (
        lambda: sweep(NoisySGD(clip=1.0), PROBLEM, ALL, over={"epsilon": [True, 2.0]}),
        "epsilon must be swept over a list of numbers, got [True, 2.0]",
    ),
    "texts for numbers": (
        lambda: sweep(NoisySGD(clip=1.0), PROBLEM, ALL, over={"epsilon": ["1", "2"]}),
        "epsilon must be swept over a list of numbers, got ['1', '2']",
    ),
    "no machines": (
        lambda: sweep(NoisySGD(mu=1.0, clip=1.0), PROBLEM, ALL, over={"machines": []}),
        "machines must be swept over a list of integers, got []",
    ),
    "complex noise": (lambda: NoisySGD(noise_std=1j), "noise_std must be a real number, got 1j. Use its real part"),
    "a complex target": (lambda: NoisySGD(mu=np.complex64(1j)), "mu must be a real number, got 1j"),
    "a complex clip of a privacy object": (lambda: NoisyMessages(clip=1j), "clip must be a real number, got 1j"),
    "a complex radius": (lambda: Ball(1j), "radius must be a real number, got 1j"),
    "a complex distance": (lambda: from_dataset(DATA, distance=1j), "distance must be a real number, got 1j"),
    "complex numbers in a sweep": (
        lambda: sweep(NoisySGD(clip=1.0), PROBLEM, ALL, over={"noise_std": [np.complex64(1j)]}),
        "noise_std must be a real number, got 1j",
    ),
    "a truth value of NumPy as a step": (
        lambda: NoisySGD(mu=1.0, step_size=np.True_),
        "step_size must be a positive number, got np.True_",
    ),
    "a truth value of NumPy as a bound": (lambda: Box(-1, np.True_), "high must be a number, got np.True_"),
    "no factor on the step": (
        lambda: NoisySGD(mu=1.0, step_scale=None),
        "step_scale must be a positive number, got None",
    ),
    "one size of cohorts": (lambda: Cohorts(6, 3), "sizes must be a list, got 3. Write [3]"),  # type: ignore[arg-type]
    "a fraction as a size of cohorts": (
        lambda: Cohorts(6, (2, 1.5)),  # type: ignore[arg-type]
        "sizes must be an integer, got 1.5",
    ),
    "an integer beyond int32 as a radius": (
        lambda: simulate(NoisySGD(mu=1.0, clip=1.0), from_dataset(DATA, constraint=Ball(10**12)), ALL),
        "constraint.radius must be a float above 2³¹, got the integer 1000000000000. Write 1e+12",
    ),
    "a text as a seed of the start": (
        lambda: from_dataset(DATA, start_seed="0"),  # type: ignore[arg-type]
        "start_seed must be an integer, got '0'. Remove the quotes",
    ),
    "a text as a flag": (
        lambda: simulate(NoisySGD(mu=1.0, clip=1.0), PROBLEM, ALL, keep_own="no"),  # type: ignore[arg-type]
        "keep_own must be true or false, got 'no'",
    ),
    "no list of axes to resample": (
        lambda: sweep(NoisySGD(clip=1.0), PROBLEM, ALL, over={"mu": [1.0]}, resample=None),  # type: ignore[arg-type]
        "resample must be a list, got None",
    ),
    "a memory budget that is no number": (
        lambda: sweep(NoisySGD(clip=1.0), PROBLEM, ALL, over={"mu": [1.0]}, memory_budget=np.nan),  # type: ignore[arg-type]
        "memory_budget must be at least",
    ),
    "a table of Lipschitz constants": (
        lambda: from_dataset(DATA, lipschitz=np.ones((6, 1))),  # type: ignore[arg-type]
        "lipschitz must have one number for each machine, got an array of shape (6, 1)",
    ),
    "complex weights": (
        lambda: from_dataset(DATA, machine_weights=1j),  # type: ignore[arg-type]
        "machine_weights must be numbers, got complex128",
    ),
    "texts as targets of machines": (
        lambda: NoisyMinibatchSGD(epsilon=("1", "2"), clip=1.0, step_size=0.1),
        "epsilon must be a positive number, got '1'. Remove the quotes",
    ),
    "a batch that no memory holds": (
        lambda: run(FedAvg(**LOCAL, batch=10**14)),
        "batch must be smaller, so that the records of all messages fit in memory, got 100000000000000",
    ),
    "numbers as columns": (
        lambda: datasets.Preparation("y", features=[1, 2]),  # type: ignore[list-item]
        "features must be names of columns, got 1",
    ),
    "a step that is 0 in float32": (lambda: NoisySGD(mu=1.0, step_size=1e-50), f"step_size {HELD}1e-50"),
    "a swept step that is 0 in float32": (
        lambda: sweep(NoisySGD(mu=1.0, clip=1.0), PROBLEM, ALL, over={"step_size": [0.1, 1e-50]}),
        f"step_size {HELD}1e-50",
    ),
    "a step that is infinite in float32": (lambda: NoisySGD(mu=1.0, step_size=1e39), f"step_size {HELD}1e+39"),
    "noise that is 0 in float32": (lambda: NoisySGD(noise_std=1e-50), f"noise_std {HELD}1e-50"),
    "noise that is infinite in float32": (lambda: NoisySGD(noise_std=1e39), f"noise_std {HELD}1e+39"),
    "a bound that is infinite in float32": (
        lambda: datasets.from_arrays(X, Y, feature_bound=1e60, classes=3),
        f"feature_bound {HELD}1e+60",
    ),
    "a momentum that is 0 in float32": (
        lambda: run(FedAvg(**LOCAL, server=ServerOptimizer("sgd"), server_step=1.0, prox=1e-50)),
        f"prox {HELD}1e-50",
    ),
    "an integer beyond float64": (lambda: NoisySGD(mu=1.0, step_size=10**400), f"step_size {HELD}about 10^400"),
    "a large integer as a radius": (
        lambda: Ball(10**30),
        "radius must be at most 1e+18, whose square float32 holds, got about 10^30",
    ),
    "a large integer as a bound": (
        lambda: Box(-1, 10**30),
        "high must be at most 1e+18, whose square float32 holds, got about 10^30",
    ),
    "more machines than int32 counts": (
        lambda: Uniform(10**30, 3),
        "machines must be below 2³¹, as int32 counts them, got about 10^30",
    ),
    "noises that calibration overwrites": (
        lambda: UserSGD(epsilon=1.0, noises=(1.0, 0.5)),
        "noises must be left out of UserSGD, which derives it before a run. Remove it",
    ),
    "classes of slots that calibration overwrites": (
        lambda: FedAvg(**LOCAL, known=(3, 3)),
        "known must be left out of FedAvg, which derives it before a run. Remove it",
    ),
    "a number for a sampler": (
        lambda: run(NoisyMinibatchSGD(epsilon=1.0, clip=1.0, sampler=-1)),  # type: ignore[arg-type]
        "sampler must be a name, such as 'subset', or a Sampler, got -1",
    ),
    "a schedule for the machines' step": (
        lambda: NoisySGD(mu=1.0, step_size=optax.exponential_decay(1.0, 1, 0.5)),
        "step_size must be a positive number, got a function",
    ),
    "an optimiser for a schedule": (lambda: run(served(optax.adam)), f"{SCHEDULE}a function that raises TypeError"),
    "a negative schedule": (lambda: run(served(lambda count: -1.0)), f"{SCHEDULE}[-1.0, -1.0]"),
    "the parts of a partition as its table": (
        lambda: from_dataset(DATA, partition_table=datasets.partition(X[:, 0], 2, kind="iid", sizes=[20, 30])),
        "partition_table must be an array of numbers, got rows of different lengths. datasets.table(parts)[0] pads the",
    ),
    "a kind of partition in other words": (
        lambda: datasets.partition(Y, 6, kind="noniid"),
        "unknown kind 'noniid', did you mean 'dirichlet'? by_label and shards are not iid either",
    ),
    "images with the channels first": (
        lambda: from_dataset(
            datasets.from_arrays(np.zeros((6, 1, 8, 8)), Y[:6], feature_bound=1.0, classes=3), network=MLP()
        ),
        "images must be [examples, height, width, channels] for a network, got (1, 8, 8) each, which looks like",
    ),
    "a table of a run": (
        lambda: table(SavedRun(rounds=[1], iterates={}, params=X, guarantee=None, costs={}, method="")),  # type: ignore[arg-type]
        "results must be a folder, the result of load, or datasets of sweeps, got SavedRun. Use run.metrics, or sweep(",
    ),
    "a fitted factor for many rounds": (
        lambda: OptimalFactor().check(Schedule(1, np.zeros((2001, 1), np.int32)), 3),
        "rounds must be at most 2000 for OptimalFactor, got 2001. Use 'toeplitz'",
    ),
    "a schedule without an optimiser": (
        lambda: run(FedAvg(**LOCAL, server_step=optax.constant_schedule(1.0))),
        "server and server_step must be given together, got only server_step. Set both or none",
    ),
}


@pytest.mark.parametrize(("call", "line"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_in_one_line(call, line, monkeypatch):
    for module, program in ((simulation, "run_program"), (sweeping, "run_chunk")):
        monkeypatch.setattr(module, program, lambda *_, **__: pytest.fail("a program was called"))
    with pytest.raises(Refusal) as caught:
        call()
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("DPSGD", "NoisyMinibatchSGD'? It is also known as DP-SGD"),
        ("DPFTRL", "FedAvg'? DP-FTRL is FedAvg with unit = 'machine' and noise_schedule = 'tree'"),
        ("SGD", "NoisySGD'? Or NoisyMinibatchSGD or LocalSGD. epsilon = inf is without noise"),
        ("Fedavg", "FedAvg'?"),
        ("dp_mu2", "DPMu2'?"),
        ("simualte", "simulate'?"),
    ],
)
def test_an_unknown_name_of_the_package_names_the_nearest(name, nearest):
    with pytest.raises(AttributeError) as caught:
        getattr(fedprivjax, name)
    assert str(caught.value) == f"No fedprivjax attribute {name}, did you mean '{nearest}"


LARGE_BATCH = "batch = 11 is above all machines' numbers of records: a local step takes all records of a machine"
OF_MACHINES = {"unit": "machine", "update_clip": 1.0, "noise_std": 1.0}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, LARGE_BATCH),
        (OF_MACHINES | {"relation": "replace-one"}, f"{LARGE_BATCH}. {TELLS_SIZE}"),
        ({"unit": "record", "clip": 1.0, "noise_std": 1.0}, LARGE_BATCH),
    ],
)
def test_a_batch_above_all_machines_records_is_warned_of(settings, says):
    ready(FedAvg(**LOCAL, **settings, batch=10), PROBLEM, ALL, rounds=2)  # the numbers of records
    method = FedAvg(**LOCAL, **settings, batch=11)
    draw_plan(PROBLEM, ALL, 2, sampler=method.minibatches)  # sampling a plan warns of nothing
    with pytest.warns(UserWarning, match=f"^{re.escape(says)}$"):
        ready(method, PROBLEM, ALL, rounds=2)


def test_ordinary_numbers_pass():
    assert len(datasets.partition(Y, 6, sizes="dirichlet", alpha=0.5, empty="keep")) == 6
    assert DPMu2(mu=np.inf, clip=1e-6, step_size=1e30).step_size == 1e30
    assert Ball(10**6).diameter == 2 * 10**6
