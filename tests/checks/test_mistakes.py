"""Common mistakes in Python: each gives a message of one line before anything is compiled."""

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flax import struct

from fedprivjax import (
    Ball,
    DPMu2,
    Full,
    LocalPrivacy,
    LocalSGD,
    Logistic,
    MessagePrivacy,
    Metric,
    NoisyMessages,
    NoisyMinibatchSGD,
    NoisySGD,
    Protocol,
    Refusal,
    Softmax,
    StaleMomentum,
    Uniform,
    audit,
    audit_one_run,
    calibrate,
    check_protocol,
    datasets,
    draw_plan,
    final,
    from_dataset,
    guarantee,
    linear_problem,
    simulate,
    sweep,
    transcript,
)
from fedprivjax.checks.suggestions import WHOLE_CLIENTS
from fedprivjax.engine import simulate as simulation
from fedprivjax.engine import transcript as transcripts
from fedprivjax.features import Constant
from fedprivjax.method.pairing import PRIVACY_KINDS
from fedprivjax.plan.samplers import Subset
from fedprivjax.protocols.noisy_sgd import SGD
from fedprivjax.protocols.registry import METHODS
from fedprivjax.sweeps import execute as sweeping
from fedprivjax.sweeps.results import sweep_dataset

DRAWN = np.random.default_rng(0)
X = DRAWN.uniform(-0.5, 0.5, (60, 3))
Y = np.arange(60) % 3
PROBLEM = linear_problem(X, Y, Softmax(3), feature_bound=1.0, constraint=Ball(2.0))
DATA = datasets.from_arrays(X, Y, feature_bound=1.0, classes=3)
OURS = DPMu2(mu=1.0, clip=1.0)
SOME = Uniform(6, 3)
PLAN = draw_plan(PROBLEM, SOME)
RESULTS = sweep_dataset(
    {"train_loss": np.zeros((1, 1, 2)), "diverged": np.zeros((1, 1))}, {}, {"seed": [0], "round": [1, 2]}, {}
)


@struct.dataclass(kw_only=True)
class Own(SGD):
    """An algorithm that checks none of its settings."""

    beta: Any = 0.5


@struct.dataclass(kw_only=True)
class OwnPrivacy(MessagePrivacy):
    """A privacy object that checks none of its settings."""

    clip: Any = 1.0


def pair(beta=0.5, **settings):
    return Protocol(Own(beta=beta), privacy=OwnPrivacy(**settings), noise_std=1.0, step_size=0.1)


def norm(params):
    return np.sum(params)


FIRST = "protocol must come first, then problem and participation, got a Problem as protocol"
MAKERS = "problem must be a Problem, such as from_dataset(data) or linear_problem(X, y, loss), got "
TAKES_PART = "participation must be a Participation, such as Full({0}) or Uniform({0}, per_round), got "
OBJECT = "protocol must be an object of a flax.struct.dataclass, such as DPMu2(mu=1.0), got 'dp_mu2'"
CLASS = "protocol must be an object, such as DPMu2(...), got the class DPMu2"
LOSS = "loss must be an object, such as Softmax(classes) or Logistic(), got "
SETS = 'dataset must be a Dataset or a Stream, as datasets.load("digits") and '
SETS += "datasets.from_arrays(X, y, feature_bound=1.0, classes=2) make it, got "
LEAVES = "mu, epsilon, noise_std, step_size, step_scale, clip, radius, low, high, scale"

MISTAKES = {
    "swapped in a run": (lambda: simulate(PROBLEM, OURS, SOME), FIRST),
    "swapped in a sweep": (lambda: sweep(PROBLEM, OURS, SOME), FIRST),
    "swapped in a transcript": (lambda: transcript(PROBLEM, OURS, SOME), FIRST),
    "swapped in an audit": (lambda: audit_one_run(PROBLEM, OURS, SOME), FIRST),
    "swapped in a guarantee": (lambda: guarantee(PROBLEM, OURS, PLAN), FIRST),
    "swapped in a calibration": (lambda: calibrate(PROBLEM, OURS, PLAN), FIRST),
    "participation second": (lambda: simulate(OURS, SOME, PROBLEM), MAKERS + "a Uniform"),
    "a data set": (lambda: simulate(OURS, DATA, SOME), MAKERS + "a Dataset"),
    "arrays": (lambda: simulate(OURS, X, SOME), MAKERS + "an array of shape (60, 3)"),
    "a number of machines": (lambda: simulate(OURS, PROBLEM, 10), TAKES_PART.format(10) + "10"),
    "nobody": (lambda: sweep(OURS, PROBLEM, None), TAKES_PART.format("machines") + "None"),
    "a law's class": (lambda: draw_plan(PROBLEM, Full), TAKES_PART.format("machines") + "the class Full"),
    "a protocol's class": (lambda: simulate(DPMu2, PROBLEM, SOME), CLASS),
    "a protocol's class, swept": (lambda: sweep(DPMu2, PROBLEM, SOME, over={"mu": [1.0]}), CLASS),
    "a protocol's class, checked": (lambda: check_protocol(DPMu2, PROBLEM), CLASS),
    "a protocol's name": (lambda: simulate("dp_mu2", PROBLEM, SOME), OBJECT),
    "a protocol's name, audited": (lambda: audit("dp_mu2"), OBJECT),
    "a problem for a federation": (
        lambda: audit(OURS, PROBLEM),
        "federation must be a small one, such as Federation(Full(4), rounds=12, records=12): "
        "audit_one_run takes a problem, got a Problem",
    ),
    "nothing to audit": (
        lambda: audit_one_run(DPMu2(mu=np.inf, clip=1.0), PROBLEM, SOME),
        "DPMu2 must have a finite ε to be audited, got inf",
    ),
    "a loss's name": (lambda: linear_problem(X, Y, "softmax"), LOSS + "'softmax'"),
    "a loss's class": (lambda: linear_problem(X, Y, Softmax), LOSS + "the class Softmax"),
    "a data set's loss by name": (lambda: from_dataset(DATA, "softmax"), LOSS + "'softmax'"),
    "a data set's name": (lambda: from_dataset("digits"), SETS + "'digits'"),
    "a data set's arrays": (lambda: from_dataset(X, Y), SETS + "an array of shape (60, 3)"),
    "one example": (
        lambda: linear_problem(X[0], Y, Softmax(3)),
        "features must be [examples, features] or have a leading machines axis, got (3,)",
    ),
    "features transposed": (
        lambda: linear_problem(X.T, Y, Softmax(3)),
        "labels must have shape (3,) to match features, got (60,)",
    ),
    "labels one-hot": (
        lambda: linear_problem(X, np.eye(3)[Y], Softmax(3)),
        "labels must have shape (60,) to match features, got (60, 3)",
    ),
    "a test set without labels": (
        lambda: linear_problem(X, Y, Softmax(3), test=X),
        "test must be (features, labels), got an array of shape (60, 3)",
    ),
    "a narrower test set": (
        lambda: linear_problem(X, Y, Softmax(3), test=(X[:, :2], Y)),
        "test features must have shape [examples, 3], got (60, 2)",
    ),
    "a radius for a ball": (
        lambda: linear_problem(X, Y, Softmax(3), constraint=2.0),
        "constraint must be a set, such as Ball(2.0), got 2.0",
    ),
    "a list for mu": (
        lambda: DPMu2(mu=[1.0, 2.5]),
        'mu must be one number, got [1. , 2.5]: a sweep takes several, as over={"mu": [...]}',
    ),
    "an array for mu": (
        lambda: simulate(DPMu2(mu=np.array([1, 2])), PROBLEM, SOME),
        'mu must be one number, got an array of shape (2,): a sweep takes several, as over={"mu": [...]}',
    ),
    "an array for a step": (
        lambda: sweep(NoisySGD(mu=1.0, clip=1.0, step_size=np.array([1, 2])), PROBLEM, SOME),
        'step_size must be one number, got an array of shape (2,): a sweep takes several, as over={"step_size": [...]}',
    ),
    "two targets": (
        lambda: DPMu2(mu=1.0, epsilon=2.0),
        "mu or epsilon must be given, not both, got mu = 1.0 and epsilon = 2.0. Leave one out: mu is a GDP parameter, ",
    ),
    "a μ where there is ε": (
        lambda: NoisyMinibatchSGD(mu=1.0),
        "mu must be given to NoisyMinibatchSGD as epsilon or noise_std, got mu = 1.0",
    ),
    "a misspelt setting": (
        lambda: DPMu2(stepsize=0.1),
        "unknown setting of DPMu2 'stepsize', did you mean 'step_size'? (known: calibrate_to, adversary, epsilon, ",
    ),
    "a setting of others": (
        lambda: StaleMomentum(mu=1.0, cancel=True),
        "unknown setting of StaleMomentum 'cancel' "
        "(known: calibrate_to, adversary, epsilon, noise_std, step_size, step_scale, clip, relative_privacy, mu, "
        "batch, noise_schedule, server)",
    ),
    "a misspelt setting among many": (
        lambda: LocalSGD(clipp=1.0),
        "unknown setting of LocalSGD 'clipp', did you mean 'clip'? (known: calibrate_to, ",
    ),
    "a misspelt setting of a pair": (
        lambda: Protocol(SGD(), privacy=NoisyMessages(clip=1.0), stepsize=0.1),
        "unknown setting of Protocol 'stepsize', did you mean 'step_size'? (known: algorithm, ",
    ),
    "a pair without a privacy object": (
        lambda: Protocol(SGD(), step_size=0.1),
        "privacy must be a NoisyMessages or a NoisyRecords or a NoisyMomentum or a GaussianMean or a BitMean with SGD",
    ),
    "a pair without an algorithm": (
        lambda: Protocol(privacy=NoisyMessages(clip=1.0)),
        "algorithm must be an Algorithm or a LocalAlgorithm, got None",
    ),
    "no work of local steps": (
        lambda: LocalPrivacy(unit="machine", update_clip=1.0),
        "work must be a LocalEpochs or a LocalSteps, got None. Set it, for example to LocalEpochs(1, batch=10)",
    ),
    "a misspelt option of a sweep": (
        lambda: sweep(OURS, PROBLEM, SOME, seed=3),
        "unknown setting of sweep 'seed', did you mean 'seeds'?",
    ),
    "a misspelt option of a sweep's folder": (
        lambda: sweep(OURS, PROBLEM, SOME, foldr="here"),
        "unknown setting of sweep 'foldr', did you mean 'folder'?",
    ),
    "a misspelt option of a run": (
        lambda: simulate(OURS, PROBLEM, SOME, round=5),
        "unknown setting of simulate 'round', did you mean 'rounds'?",
    ),
    "a misspelt option of a transcript": (
        lambda: transcript(OURS, PROBLEM, SOME, seeds=5),
        "unknown setting of transcript 'seeds', did you mean 'seed'? (known: protocol, problem, participation, ",
    ),
    "a misspelt option of an audit": (
        lambda: audit(OURS, run=5),
        "unknown setting of audit 'run', did you mean 'runs'? (known: protocol, federation, runs, ",
    ),
    "a misspelt option of an audit of one run": (
        lambda: audit_one_run(OURS, PROBLEM, SOME, verdct=5),
        "unknown setting of audit_one_run 'verdct', did you mean 'verdict'?",
    ),
    "one number swept": (
        lambda: sweep(NoisySGD(clip=1.0), PROBLEM, SOME, over={"epsilon": 1.0}),
        "epsilon must be swept over a list of numbers, got 1.0. Write [1.0]",
    ),
    "a list for epsilon": (
        lambda: DPMu2(epsilon=[1.0, 2.0]),
        'epsilon must be one number, got [1.0, 2.0]: a sweep takes several, as over={"epsilon": [...]}, '
        "and relative_privacy=[...] gives every machine its own privacy",
    ),
    **{
        f"an array for epsilon of {protocol.name}": (
            lambda protocol=protocol: simulate(protocol, PROBLEM, SOME),
            'epsilon must be one number, got [1.0, 2.0]: a sweep takes several, as over={"epsilon": [...]}, '
            "and relative_privacy=[...] gives every machine its own privacy",
        )
        for protocol in (method(epsilon=np.array([1.0, 2.0]), clip=1.0) for method in (DPMu2, NoisySGD, StaleMomentum))
    },
    "an array for epsilon of a calibration": (
        lambda: calibrate(DPMu2(clip=1.0), PROBLEM, PLAN, epsilon=[1.0, 2.0], delta=1e-5),
        "epsilon must be one number, got [1., 2.]: relative_privacy=[...] gives every machine its own privacy",
    ),
    "a negative clip of one's own": (
        lambda: simulate(pair(clip=-1.0), PROBLEM, SOME),
        "privacy.clip must be positive, got -1.0",
    ),
    "a number of one's own that is 0 in float32": (
        lambda: sweep(pair(beta=1e-50), PROBLEM, SOME),
        "algorithm.beta must be between 1.18e-38 and 3.4e+38, as float32 holds, got 1e-50",
    ),
    "a word for a number of one's own": (
        lambda: sweep(pair(beta="a"), PROBLEM, SOME),
        "algorithm.beta must be a number, got 'a'. "
        "Declare a setting that is not a number as struct.field(pytree_node=False)",
    ),
    "a fraction for a seed": (lambda: simulate(OURS, PROBLEM, SOME, seed=1.5), "seed must be an integer, got 1.5"),
    "a fraction of seeds": (lambda: sweep(OURS, PROBLEM, SOME, seeds=2.0), "seeds must be an integer, got 2.0"),
    "a list of fractions": (lambda: sweep(OURS, PROBLEM, SOME, seeds=[0.5]), "seed must be an integer, got 0.5"),
    "rounds as a float": (lambda: simulate(OURS, PROBLEM, SOME, rounds=10.0), "rounds must be an integer, got 10.0"),
    "one metric": (
        lambda: simulate(OURS, PROBLEM, SOME, metrics="train_loss"),
        "metrics must be a list, got 'train_loss'",
    ),
    "a number of metrics": (
        lambda: simulate(OURS, PROBLEM, SOME, metrics=3),
        "metrics must be a list, got 3",
    ),
    "an unknown metric": (
        lambda: simulate(OURS, PROBLEM, SOME, metrics=["train_los"]),
        "unknown metric 'train_los', did you mean 'train_loss'?",
    ),
    "a metric of one argument": (
        lambda: simulate(OURS, PROBLEM, SOME, metrics=[norm]),
        "metric 'norm' must be a function (problem, snapshot), got norm(params)",
    ),
    "an object with a function of no argument": (
        lambda: sweep(OURS, PROBLEM, SOME, metrics=[Metric("one", lambda: 1.0)]),
        "metric 'one' must be a function (problem, snapshot), got one()",
    ),
    "a metric that was not recorded": (lambda: final(RESULTS, "test_loss"), "unknown metric 'test_loss'"),
    "a static setting swept": (
        lambda: sweep(OURS, PROBLEM, SOME, over={"trust": ["none", "server"]}),
        f"over must name settings that can be swept ({LEAVES}), got 'trust'. Run a sweep for each of its values",
    ),
    "an unknown setting swept": (
        lambda: sweep(OURS, PROBLEM, SOME, over={"step": [1.0]}),
        f"unknown swept setting 'step', did you mean 'step_size'? (known: {LEAVES})",
    ),
    "names alone": (
        lambda: sweep(OURS, PROBLEM, SOME, over=["mu"]),
        'over must map names to values, such as {"mu": [1.0, 2.0]}, got a list',
    ),
    "text for numbers": (
        lambda: sweep(DPMu2(clip=1.0), PROBLEM, SOME, over={"mu": "1"}),
        "mu must be swept over a list of numbers, got '1'",
    ),
    "an array of two axes swept": (
        lambda: sweep(DPMu2(clip=1.0), PROBLEM, SOME, over={"mu": np.ones((2, 2))}),
        "mu must be swept over a list of numbers, got an array of shape (2, 2)",
    ),
    "a text for memory": (
        lambda: sweep(OURS, PROBLEM, SOME, memory_budget="1GB"),
        "memory_budget must be a number, got '1GB'",
    ),
    "a text for a choice": (
        lambda: sweep(OURS, PROBLEM, SOME, common_noise="yes"),
        "common_noise must be true or false, got 'yes'",
    ),
    "a quoted delta": (
        lambda: simulate(OURS, PROBLEM, SOME, delta="1e-5"),
        "delta must be between 0 and 1, got '1e-5'. Remove the quotes",
    ),
    "a misspelt argument of arrays": (
        lambda: datasets.from_arrays(np.eye(2), [0.5, 1.5], feature_bnd=1.0),
        "unknown setting of from_arrays 'feature_bnd', did you mean 'feature_bound'?",
    ),
    "no examples": (
        lambda: datasets.from_arrays(np.zeros((0, 3)), [], feature_bound=1.0),
        "features must have at least one example, got shape (0, 3)",
    ),
    "ragged examples": (
        lambda: datasets.from_arrays([[1, 2], [3]], [0.5, 1.5], feature_bound=1.0),
        "features must be [examples, features], got rows of different lengths",
    ),
    "a dataset for its labels": (
        lambda: datasets.partition(datasets.load("digits"), 10),
        "labels must be an array [examples], got a Dataset. Give its labels",
    ),
    "a negative seed of a partition": (
        lambda: datasets.partition(np.arange(10), 2, seed=-1),
        "seed must be at least 0, got -1",
    ),
    "no machines": (
        lambda: from_dataset(datasets.load("digits"), partition_table=np.zeros((0, 3), int)),
        "partition_table must have a row for each machine, got shape (0, 3)",
    ),
    "a fraction for a cohort": (
        lambda: sweep(OURS, PROBLEM, SOME, over={"per_round": [2.0]}),
        "per_round must be an integer, got 2.0",
    ),
    "one cohort": (
        lambda: sweep(OURS, PROBLEM, SOME, over={"per_round": 2}),
        "per_round must be swept over a list of integers, got 2",
    ),
    "a cohort twice": (
        lambda: sweep(OURS, PROBLEM, SOME, over={"per_round": [2, 2]}),
        "per_round must be swept over distinct integers, got [2, 2]",
    ),
    "a cohort of all": (
        lambda: sweep(OURS, PROBLEM, Full(6), over={"per_round": [2]}),
        "per_round must be a setting of the participation to be swept, got Full(machines=6)",
    ),
    "rounds twice": (
        lambda: sweep(OURS, PROBLEM, SOME, over={"rounds": [2]}, rounds=3),
        "rounds must be left out if they are swept, got 3",
    ),
    "a number for evaluations": (
        lambda: simulate(OURS, PROBLEM, SOME, on_evaluation=3),
        "on_evaluation must be a callable (rounds, metrics), got 3",
    ),
    "a number for progress": (
        lambda: simulate(OURS, PROBLEM, SOME, progress=3),
        "progress must be True, or a callable (done, total), got 3",
    ),
}


@pytest.mark.parametrize(("call", "line"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line(call, line, monkeypatch):
    for module, program in ((simulation, "run_program"), (sweeping, "run_chunk"), (transcripts, "replay")):
        monkeypatch.setattr(module, program, lambda *_, **__: pytest.fail("a program was called"))
    with pytest.raises(Refusal) as caught:
        call()
    said = str(caught.value)
    assert said.startswith(line)
    assert "\n" not in said


@pytest.mark.parametrize("method", [DPMu2, NoisySGD, StaleMomentum])
def test_an_epsilon_is_a_target_of_methods_with_mu(method):
    """At the run's own δ: exactly, and another δ takes other noise."""
    noises = []
    for delta in (1e-5, 1e-3):
        calibrated = calibrate(method(epsilon=2.0, clip=1.0), PROBLEM, PLAN, delta=delta)
        assert guarantee(calibrated, PROBLEM, PLAN, delta).epsilon == pytest.approx(2.0, rel=1e-6)
        noises.append(calibrated.noise_std)
    assert noises[0] > noises[1]


def test_a_call_that_names_keywords_keeps_its_signature():
    """For editors and for help()."""
    for call, named in ((simulate, "rounds"), (audit, "runs"), (audit_one_run, "each"), (transcript, "order")):
        assert "options" not in inspect.signature(call).parameters
        assert named in inspect.signature(call).parameters
        assert call.__doc__


def test_an_epsilon_without_a_delta_is_refused():
    with pytest.raises(Refusal, match="delta must be given with epsilon"):
        calibrate(DPMu2(epsilon=2.0, clip=1.0), PROBLEM, PLAN)


def test_noise_in_the_ratios_of_epsilons_needs_a_delta():
    problem = linear_problem(np.eye(4)[:, None], np.zeros((4, 1), int), Logistic(), feature_bound=1.0)
    method = NoisyMinibatchSGD(noise_std=1.0, epsilon=(1.0, 1.0, 2.0, 2.0), sampler="full", clip=1.0, step_size=0.1)
    plan = draw_plan(problem, Full(4), 2, sampler=method.minibatches)
    wanted = r"^delta must be given with an epsilon for each machine\. Set the method's delta$"
    for call in (calibrate, guarantee):
        with pytest.raises(Refusal, match=wanted):
            call(method, problem, plan)
    assert guarantee(replace(method, delta=1e-5), problem, plan).epsilon < np.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Uniform(20, per_rond=1),
            "unknown setting of Uniform 'per_rond', did you mean 'per_round'? (known: machines, per_round)",
        ),
        (
            lambda: Uniform(20, 5, dropouts=0.1),
            "unknown setting of Uniform 'dropouts'. Dropouts(scheme, rate) adds dropouts to a scheme",
        ),
        (lambda: Ball(radios=1.0), "unknown setting of Ball 'radios', did you mean 'radius'? (known: radius)"),
        (lambda: Subset(bach=3), "unknown setting of Subset 'bach', did you mean 'batch'? (known: batch)"),
        (lambda: Constant(vale=3), "unknown setting of Constant 'vale', did you mean 'value'? (known: value)"),
    ],
)
def test_unknown_settings_of_constructors(call, message):
    with pytest.raises(Refusal) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.parametrize("method", [NoisyMinibatchSGD, DPMu2])
def test_a_method_for_records_names_those_for_whole_clients(method):
    with pytest.raises(Refusal) as refused:
        method(**{"unit": "machine"})
    assert str(refused.value) == f"unknown setting of {method.__name__} 'unit'. {WHOLE_CLIENTS}"
    for name, one in (METHODS | PRIVACY_KINDS).items():
        whole = "unit" in inspect.signature(one).parameters or getattr(one, "unit", None) == "machine"
        assert (f"{one.__name__} ({name!r})" in WHOLE_CLIENTS) == whole
