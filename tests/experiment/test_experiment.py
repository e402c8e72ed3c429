import copy
import tomllib
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from cases import sparing
from jax.flatten_util import ravel_pytree

from fedprivjax import CNN, MLP, datasets, experiment, from_dataset
from fedprivjax.checks.refusal import Refusal
from fedprivjax.datasets import mnist
from fedprivjax.datasets.insurance import available as insurance_available
from fedprivjax.experiment import jobs as listed
from fedprivjax.experiment import read as reading
from fedprivjax.plan.participation import Balanced, Full, Given, Uniform, Varying
from fedprivjax.problem.losses import Absolute, GemanMcClure, Hinge, Huber, Logistic, Pinball, Tukey
from fedprivjax.problem.smoothing import Moreau
from fedprivjax.protocols import PROTOCOLS, NoisySGD
from fedprivjax.sweeps.configurations import sweepable

BUNDLED = experiment.bundled()
SMALL = """
title = "small"

[problem]
dataset = "least_squares"
options = { examples = 60, features = 3, machines = 6 }
radius = 2.0

[participation]
machines = 6
per_round = 3
rounds = 4

[[protocol]]
name = "dp_mu2"
label = "ours"
noise_schedule = "gap"
grid = { clip = [0.5, 2.0] }

[[protocol]]
name = "noisy_sgd"
mu = inf

[sweep]
mu = [1, 2]
seeds = 2

[evaluation]
select = "excess_risk"

[[expected]]
protocol = "ours"
metric = "excess_risk"
rule = "within"
tolerance = 0.5
cells = [{ at = { mu = 1 }, value = 0.25 }]
"""


def small(**changes):
    raw = tomllib.loads(SMALL)
    for key, value in changes.items():
        reading._change(raw, key.replace("__", "."), value)
    return raw


def participation(**settings):
    """Return the scheme of a section `[participation]`."""
    return experiment.make_participation(experiment.parse(small(participation=settings)).participation, {})


def refusal(raw):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the caller looks at all of it
        listed.jobs(experiment.parse(raw))
    assert "\n" not in str(caught.value)
    return str(caught.value)


FIRST = {name.rpartition("/")[0]: name for name in BUNDLED}  # one of every folder


@pytest.mark.parametrize("name", sparing(BUNDLED, [*FIRST.values()]))
def test_a_bundled_experiment_round_trips(name):
    parsed = experiment.load(name)
    raw = experiment.to_mapping(parsed)
    assert experiment.parse(raw) == parsed
    assert experiment.parse(tomllib.loads(tomli_w.dumps(raw))) == parsed


@pytest.mark.slow
def test_settings_of_bundled_experiments_are_distinct():
    assert len({str(experiment.to_mapping(experiment.load(name))) for name in BUNDLED}) == len(BUNDLED) >= 7


AT_HAND = {"mnist": mnist.available, "mnist_pairs": mnist.available, "insurance": insurance_available}
PREPARED = (  # one or two of every folder: the bundled experiments are also run, scaled down, by bundled_tiny.py
    *("beyond/uniform-schedule", "cheu-2022/full", "cheu-2022/toy-full", "clients/heterogeneity/dirichlet-5"),
    *("frontier/insurance", "frontier/logistic", "frontier/server", "lowy-razaviyayn-2023/figure4/3-of-3-as-published"),
    *("lowy-razaviyayn-2023/figure8/as-published", "models/mlp", "quickstart", "reshef-levy-2024/table1"),
    *("reshef-levy-2025/table1", "tran-cutkosky-2022/noise", "tran-cutkosky-2022/reduced", "your-own/people"),
)
BRIEF = ("cheu-2022/full", "frontier/insurance", "models/mlp", "tran-cutkosky-2022/noise", "your-own/people")
WHOLE = (
    "reshef-levy-2025/table1",
    "cheu-2022/toy",
    "beyond/full-batch",
)


def marked(names, quick):
    """Return experiments as parameters of a test: those in `quick` run by default, the others with the slow tests."""
    made = []
    for name in names:
        of_mnist = [pytest.mark.mnist] if "mnist" in experiment.load(name).problem.dataset else []
        made.append(pytest.param(name, marks=of_mnist + ([] if name in quick else [pytest.mark.slow])))
    return made


def prepared(name, change=lambda parsed: parsed):
    """Return the jobs of a bundled experiment with one seed and trial."""
    parsed = experiment.load(name)
    if not AT_HAND.get(parsed.problem.dataset, lambda: True)():
        pytest.skip(f"the {parsed.problem.dataset} files are at hand nowhere")
    fewer = {"seeds": 1, "trials": parsed.sweep.trials and 1}
    small = change(parsed.model_copy(update={"sweep": parsed.sweep.model_copy(update=fewer)}))
    todo = listed.jobs(small)
    places = {(job.label, *job.shape.values()) for job in todo}
    assert len(places) == len(todo) >= len(parsed.protocol) * len(small.shapes)
    assert all(np.isfinite(job.prepare().configurations.step_size).all() for job in todo)


def at_one_point(parsed):
    """Return the experiment at the first value of every axis, and the last of ε, whose accounting is the fastest.

    Slow feature maps are removed.
    """
    first = {name: values[-1:] if name == "epsilon" else values[:1] for name, values in parsed.sweep.over.items()}
    protocols = [
        one.model_copy(update={"grid": {name: values[:1] for name, values in one.grid.items()}})
        for one in parsed.protocol
    ]
    sweep = parsed.sweep.model_copy(update={"over": first})
    problem = parsed.problem
    if any(each.cached for each in problem.maps):
        problem = problem.model_copy(update={"maps": ()})
    return parsed.model_copy(update={"sweep": sweep, "protocol": protocols, "problem": problem})


@pytest.mark.parametrize("name", marked(PREPARED, BRIEF))
def test_a_bundled_experiment_can_be_prepared_at_one_point(name):
    prepared(name, at_one_point)


@pytest.mark.slow
@pytest.mark.parametrize("name", marked(WHOLE, WHOLE))
def test_a_bundled_experiment_can_be_prepared_whole(name):
    prepared(name)


def test_small_settings_reach_the_objects():
    first, second = listed.jobs(experiment.parse(small()))
    assert (first.label, second.label) == ("ours", "noisy_sgd")
    assert first.prepare().first.protocol.noise_schedule == "gap"
    assert first.prepare().static.size == (6, 3, 4)
    assert {name: axis.tolist() for name, axis in first.prepare().axes.items()} == {"mu": [1, 2], "clip": [0.5, 2]}
    assert first.prepare().first.problem.constraint.radius == 2.0
    assert not second.prepare().axes  # its own mu = inf is not swept over
    assert not second.prepare().configurations.noise_std.any()


def test_swept_integers_are_shapes_and_the_rest_axes():
    parsed = experiment.parse(small(sweep__per_round=[2, 3], sweep__rounds=4))
    assert parsed.shapes == [{"per_round": 2, "rounds": 4}, {"per_round": 3, "rounds": 4}]
    assert parsed.real_axes == {"mu": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("kind", "more", "expected", "rounds"),
    [
        ("uniform", {"per_round": 2}, Uniform(4, 2), None),
        ("full", {"rounds": 7}, Full(4), 7),
        ("full", {"per_round": 4}, Full(4), None),
        ("balanced", {"per_round": 2, "reshuffle": False}, Balanced(4, 2, False), None),
        ("given", {"schedule": [[0, 1], [2, 3], [0, 3]]}, Given(4, [[0, 1], [2, 3], [0, 3]]), 3),
        ("given", {"schedule": [[0, 1], [2, 3]], "rounds": 1}, Given(4, [[0, 1], [2, 3]]), 1),
        ("binomial", {"rate": 0.5}, Varying.binomial(4, 0.5), None),
        ("between", {"min_machines": 2, "max_machines": 3, "rounds": 3}, Varying.between(4, 2, 3), 3),
        ("varying", {"sizes": [0.25, 0.75]}, Varying(4, (0.25, 0.75)), None),
    ],
)
def test_kinds_of_participation(kind, more, expected, rounds):
    assert participation(kind=kind, machines=4, **more) == (expected, rounds)


def test_participation_is_uniform_by_default():
    assert participation(machines=4, per_round=2) == (Uniform(4, 2), None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"kind": "unifrm"},
            "unknown participation 'unifrm', did you mean 'uniform'?",
        ),
        ({"kind": "binomial"}, "participation.rate must be given"),
        ({"kind": "between", "min_machines": 0, "max_machines": 2}, "min_machines must be at least 1, got 0"),
        (
            {"kind": "between", "min_machines": 2, "max_machines": 9},
            "per_round must be at most machines (6), got 9",
        ),
        ({"kind": "varying", "sizes": [0.5, 0.4]}, "sizes must be probabilities that add up to 1, got a sum of 0.9"),
        (
            {"per_round": 2, "rate": 0.5},
            "rate must be in [participation] of kind 'binomial' or 'poisson_cohorts' or 'cyclic_poisson', "
            "got it in [participation]",
        ),
        (
            {"kind": "binomial", "rate": 0.5, "per_round": 2},
            "per_round must be in [participation] of kind 'full' or 'uniform' or 'balanced' or …, "
            "got it in [participation]",
        ),
        (
            {"kind": "binomial", "rat": 0.5},
            "unknown key in [participation] 'rat', did you mean 'rate'?",
        ),
    ],
)
def test_refused_participation(settings, message):
    with pytest.raises(Refusal) as caught:
        participation(machines=6, **settings)
    assert str(caught.value) == message


def test_per_round_cannot_be_swept_if_it_is_random():
    given = experiment.parse(small(participation={"kind": "binomial", "rate": 0.5, "machines": 6})).participation
    with pytest.raises(Refusal, match="per_round must be left out for kind 'binomial', got 2"):
        experiment.make_participation(given, {"per_round": 2})


OPTIONS = {"examples": 60, "features": 3}


def test_a_partition_may_limit_the_records_of_each_machine():
    problem = {"kind": "iid", "records": 2}
    settings = experiment.parse(small(problem__options=OPTIONS, problem__partition=problem))
    problem, whole = experiment.make_problem(settings.problem, 6), datasets.load("least_squares", **OPTIONS)
    rows = problem.partition_table.rows
    assert rows.shape == (6, 2)
    assert sorted(rows.ravel()) == list(range(problem.examples)) == list(range(12))  # only these are stored
    places = [np.flatnonzero(whole.labels == label).item() for label in np.asarray(problem.pool.label)]
    np.testing.assert_array_equal(problem.pool.features, whole.features[places])
    assert max(places) > 12  # they are sampled from all data
    assert experiment.make_problem(settings.problem, 6, records=5).partition_table.rows.shape == (6, 5)
    with pytest.raises(ValueError, match=r"problem.partition.records must be at most 1, got 2"):
        experiment.make_problem(settings.problem, 40)


THEORY = {
    "problem__dataset": "least_absolute",
    "problem__options": {"examples": 1000, "features": 3},
    "problem__loss": {"kind": "absolute", "smoothing": "theory"},
    "sweep": {"machines": [200, 800], "seeds": 1},
    "evaluation": {"metrics": ["excess_risk"], "delta": 1e-5},
    "expected": [],
}


@pytest.mark.parametrize(("name", "smooth"), [("user_agd", True), ("user_sgd", False)])
def test_a_protocols_bound_chooses_its_batch_and_its_envelope(name, smooth):
    once = {"kind": "one_pass", "per_round": "theory"}
    raw = small(**THEORY, participation=once, protocol=[{"name": name, "epsilon": 1.0}])
    starts = [job.prepare() for job in listed.jobs(experiment.parse(raw))]
    strengths = [start.first.problem.smoothness for start in starts]
    assert [np.isfinite(strength) for strength in strengths] == [smooth, smooth]
    assert (strengths[0] < strengths[1]) == smooth  # the more users, the closer the envelope
    assert all(start.first.problem.excess is not None for start in starts)
    assert starts[0].first.plan.size.per_round < starts[1].first.plan.size.per_round or not smooth


def test_a_protocols_bound_chooses_every_phases_own_cohorts():
    raw = small(**THEORY, protocol=[{"name": "user_agd", "epsilon": 5.0, "strong_convexity": 0.3, "phases": 2}])
    raw["problem"] |= {"dataset": "least_squares", "loss": "squared", "radius": 1.0}
    starts = [job.prepare().first for job in listed.jobs(experiment.parse(raw | {"participation": {"kind": "phases"}}))]
    for start, users in zip(starts, (200, 800), strict=True):
        sizes = start.plan.schedule.present.sum(axis=1)
        assert sizes[0] < sizes[-1]
        assert 0.8 * users < sizes.sum() <= users
    raw["protocol"] = [{"name": "user_sgd", "epsilon": 1.0}]
    with pytest.raises(Refusal, match="kind must not be 'phases' for"):
        listed.jobs(experiment.parse(raw | {"participation": {"kind": "phases"}}))


def test_the_bound_of_all_users_in_every_round_chooses_rounds_and_an_envelope():
    raw = small(**THEORY, protocol=[{"name": "user_sgd", "epsilon": 1.0}])
    raw["problem"] |= {"partition": {"kind": "iid", "records": 1}}
    raw["participation"] = {"kind": "full", "rounds": "theory", "order": "cyclic"}
    first, second = (job.prepare().first for job in listed.jobs(experiment.parse(raw)))
    assert first.plan.size.rounds < second.plan.size.rounds
    for start in (first, second):
        assert start.protocol.step_size == pytest.approx(2 / start.problem.smoothness)
        assert start.plan.uses.tolist() == [start.plan.size.rounds] * start.plan.size.machines


def test_a_partition_covers_the_pool():
    def dealt(seed):
        settings = experiment.parse(small(problem__partition={"kind": "iid", "seed": seed})).problem
        return experiment.make_problem(settings, 4).partition_table.rows

    one, same, other = dealt(3), dealt(3), dealt(4)
    assert one.shape == (4, 15)
    assert sorted(one.ravel()) == list(range(60))
    assert (one == same).all()
    assert (one != other).any()


@pytest.mark.parametrize(
    ("change", "wrong", "nearest"),
    [
        ({"titel": "x"}, "titel", "title"),
        ({"problem__datset": "digits"}, "datset", "dataset"),
        ({"problem__dataset": "least_square"}, "least_square", "least_squares"),
        ({"problem__options": {"example": 60, "features": 3}}, "example", "examples"),
        ({"problem__partition": {"knd": "iid"}}, "knd", "kind"),
        ({"problem__partition": {"kind": "by_lable"}}, "by_lable", "by_label"),
        ({"participation__machnes": 6}, "machnes", "machines"),
        ({"protocol__0__name": "dpmu2"}, "dpmu2", "dp_mu2"),
        ({"protocol__0__cilp": 1.0}, "cilp", "clip"),
        ({"protocol__0__trust": "sever"}, "sever", "server"),
        ({"protocol__0__noise_schedule": "unifrm"}, "unifrm", "uniform"),
        ({"protocol__0__grid": {"step_sale": [1.0]}}, "step_sale", "step_scale"),
        ({"sweep__sede": 3}, "sede", "seeds"),
        ({"sweep__per_roun": [3]}, "per_roun", "per_round"),
        ({"sweep__noise_method": "materialized"}, "materialized", "materialised"),
        ({"evaluation__evry": 2}, "evry", "every"),
        ({"evaluation__metrics": ["test_los"]}, "test_los", "test_loss"),
        ({"evaluation__select": "exces_risk"}, "exces_risk", "excess_risk"),
        ({"expected__0__protcol": "ours"}, "protcol", "protocol"),
        ({"expected__0__protocol": "our"}, "our", "ours"),
        ({"expected__0__metric": "exces_risk"}, "exces_risk", "excess_risk"),
        ({"expected__0__cells": [{"att": {}}]}, "att", "at"),
        ({"expected__0__cells": [{"at": {"per_roud": 3}}]}, "per_roud", "per_round"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(change, wrong, nearest):
    assert f"'{wrong}', did you mean '{nearest}'?" in refusal(small(**change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"title": 3}, "title must be a string, got 3"),
        ({"problem": 3}, "problem must be a table, got 3"),
        ({"problem__radius": "2"}, "problem.radius must be a number, got '2'. Remove the quotes"),
        (
            {"problem__loss": "sofmax"},
            "unknown problem.loss 'sofmax', did you mean 'softmax'? (known: softmax, logistic, squared, hinge, "
            "absolute, pinball, huber, geman_mcclure, tukey, module:name)",
        ),
        ({"problem__loss": {"kind": "hinge", "smoothing": "x"}}, "problem.loss.smoothing must be a number, got 'x'"),
        ({"problem__options": 5}, "problem.options must be a table, got 5"),
        ({"problem__partition": 5}, "problem.partition must be a table, got 5"),
        (
            {"problem__partition": {"kind": "iid", "seed": "a"}},
            "problem.partition.seed must be an integer, got 'a'",
        ),
        ({"problem__partition": {"alpha": 0.1}}, "problem.partition.kind must be given"),
        ({"sweep__resample": ["step_scal"]}, "unknown axis in sweep.resample 'step_scal' (known: mu, clip)"),
        (
            {"participation__reshuffle": False},
            "reshuffle must be in [participation] of kind 'balanced', got it in [participation]",
        ),
        (
            {"participation__kind": "given", "participation__schedule": [[0, 1]], "participation__rate": 0.5},
            "rate must be in [participation] of kind 'binomial' or 'poisson_cohorts' or 'cyclic_poisson', "
            "got it in [participation]",
        ),
        ({"participation": []}, "participation must be a name or a table with kind, got []"),
        ({"participation__machines": True}, "participation.machines must be an integer, got True"),
        ({"participation__machines": 6.5}, "participation.machines must be an integer, got 6.5"),
        ({"protocol": 3}, "protocol must be a list, got 3"),
        ({"protocol": []}, "protocol must have at least one entry, got []"),
        ({"protocol": [3]}, "protocol.0 must be a table, got 3"),
        ({"problem__lipschitz": "a"}, "problem.lipschitz must be a number, got 'a'"),
        ({"problem__lipschitz": [1.0, "a"]}, "problem.lipschitz must be a number, got [1.0, 'a']"),
        ({"protocol": [{}]}, "protocol.0.name must be given"),
        ({"protocol": [{"clip": 1.0}]}, "protocol.0.name must be given"),
        ({"protocol": [{"name": 3}]}, "[[protocol]] '3': name must be a string, got 3"),
        ({"protocol__0__label": 3}, "[[protocol]] '3': label must be a string, got 3"),
        ({"protocol__0__clip": "x"}, "[[protocol]] 'ours': clip must be a positive number, got 'x'"),
        (
            {"protocol__0__mu": [1, 2]},
            "[[protocol]] 'ours': mu must be one number, got [1, 2]. Put several into [sweep] mu",
        ),
        ({"protocol__0__grid": 3}, "[[protocol]] 'ours': grid must be a table, got 3"),
        ({"protocol__0__grid": {"clip": 1.0}}, "[[protocol]] 'ours': grid.clip must be a list, got 1.0"),
        ({"sweep": 3}, "sweep must be a table, got 3"),
        ({"sweep__mu": "x"}, "sweep.mu must be a number, got 'x'"),
        ({"sweep__mu": [True]}, "sweep.mu.0 must be a number, got True"),
        ({"sweep__seeds": "a"}, "sweep.seeds must be an integer, got 'a'"),
        ({"evaluation": 3}, "evaluation must be a table, got 3"),
        ({"evaluation__metrics": "test_loss"}, "evaluation.metrics must be a list, got 'test_loss'"),
        ({"evaluation__every": 1.5}, "evaluation.every must be an integer, got 1.5"),
        ({"expected": 3}, "expected must be a list, got 3"),
        ({"expected": [3]}, "expected.0 must be a table, got 3"),
        ({"expected__0__cells": 3}, "expected.0.cells must be a list, got 3"),
        ({"expected__0__cells": [3]}, "expected.0.cells.0 must be a table, got 3"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_key(change, message):
    assert refusal(small(**change)) == message


@pytest.mark.parametrize(
    ("settings", "loss"),
    [
        ("absolute", Absolute()),
        ({"kind": "absolute"}, Absolute()),
        ({"kind": "absolute", "smoothing": 2}, Moreau(Absolute(), 2)),
        ({"kind": "pinball", "quantile": 0.9}, Pinball(0.9)),
        ({"kind": "pinball", "quantile": 0.9, "smoothing": 0.1}, Moreau(Pinball(0.9), 0.1)),
        ({"kind": "huber", "width": 0.5}, Huber(0.5)),
        ({"kind": "geman_mcclure", "scale": 2.0}, GemanMcClure(2.0)),
        ({"kind": "tukey", "scale": 2.0}, Tukey(2.0)),
    ],
)
def test_a_regression_loss_is_reached_by_its_settings(settings, loss):
    raw = small(problem__loss=settings)
    parsed = experiment.parse(raw)
    assert experiment.make_problem(parsed.problem, 6).model.loss == loss
    assert experiment.parse(experiment.to_mapping(parsed)) == parsed


@pytest.mark.parametrize(
    ("settings", "loss"),
    [
        ("logistic", Logistic()),
        ({"kind": "logistic", "score_bound": 15.0}, Logistic(15.0)),
        ("hinge", Hinge()),
        ({"kind": "hinge", "smoothing": 0.1}, Moreau(Hinge(), 0.1)),
    ],
)
def test_a_classifiers_loss_is_reached_by_its_settings(settings, loss):
    options = {"examples": 40, "features": 3, "test_examples": 5}
    problem = {"dataset": "logistic", "options": options, "loss": settings}
    assert experiment.make_problem(experiment.ProblemSettings(**problem), 4).model.loss == loss


DIGITS = {"title": "nets", "problem": {"dataset": "digits"}, "participation": {"machines": 6, "per_round": 3}}
DIGITS["protocol"] = [{"name": "noisy_sgd", "mu": 2.0, "clip": 1.0, "step_size": 0.1}]


@pytest.mark.parametrize(
    ("settings", "network"),
    [
        pytest.param({"kind": "mlp", "hidden": [4, 3], "start_seed": 5}, MLP((4, 3), 10), marks=pytest.mark.slow),
        pytest.param({"kind": "mlp", "activation": "gelu"}, MLP((64,), 10, "gelu"), marks=pytest.mark.slow),
        ({"kind": "cnn", "channels": [2], "convolutions": "xla", "clipping": "rows"}, CNN((2,), (), 10)),
    ],
)
def test_a_network_is_reached_by_its_settings(settings, network):
    raw = {**DIGITS, "problem": {"dataset": "digits", "loss": "softmax", "model": settings}}
    parsed = experiment.parse(raw)
    assert experiment.parse(experiment.to_mapping(parsed)) == parsed
    (job,) = listed.jobs(parsed)
    problem = job.prepare().first.problem
    assert problem.model.function.network == network
    for name in ("convolutions", "clipping"):
        assert getattr(problem.model, name) == settings.get(name, "auto")
    start = from_dataset(datasets.load("digits"), network=network, start_seed=settings.get("start_seed", 0)).start
    np.testing.assert_array_equal(ravel_pytree(problem.start)[0], ravel_pytree(start)[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "mpl"}, "unknown problem.model 'mpl', did you mean 'mlp'? (known: mlp, cnn, lstm, module:name)"),
        ({"hidden": [4]}, "hidden must be in [problem.model] of kind 'mlp' or 'cnn' or 'lstm', got it in [problem]"),
        (
            {"model": "mlp", "hidden": [4]},
            "hidden must be in [problem.model] of kind 'mlp' or 'cnn' or 'lstm', got it in [problem]",
        ),
        (
            {"model": {"kind": "mlp", "channels": [4]}},
            "channels must be in [problem.model] of kind 'cnn', got it in [problem.model]",
        ),
        (
            {"model": {"kind": "mlp", "hidden": [0]}},
            "[problem.model]: hidden must be at least 1, got 0. Leave out the layer",
        ),
        (
            {"model": {"kind": "mlp", "activation": "thanh"}},
            "unknown problem.model.activation 'thanh', did you mean 'tanh'?",
        ),
        (
            {"model": {"kind": "cnn", "channels": [1, 1, 1, 1]}},
            "channels must have at most 3 entries for images of 8×8",
        ),
        (
            {"model": "mlp", "loss": {"kind": "logistic", "smoothing": 1.0}},
            "problem.loss.smoothing must be left out for model 'mlp'",
        ),
        (
            {"model": "cnn", "dataset": "least_squares", "options": {"examples": 30, "features": 3}},
            "a CNN must have images [height, width, channels], got features of shape [3]",
        ),
    ],
)
def test_a_network_that_cannot_be_is_refused(settings, message):
    assert refusal({**DIGITS, "problem": {"dataset": "digits", **settings}}).startswith(message)


INTEGERS = "a list of distinct positive integers"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"problem__radius": -1.0}, "radius must be positive, got -1.0"),
        ({"problem__radius": float("nan")}, "radius must be positive, got nan"),
        (
            {"problem__loss": {"kind": "absolute", "smoothing": 0.0}},
            "problem.loss.smoothing must be greater than 0, got 0.0",
        ),
        (
            {"problem__loss": "logistic", "problem__score_bound": 15.0},
            "score_bound must be in [problem.loss] of kind 'logistic', got it in [problem]",
        ),
        (
            {"problem__loss": {"kind": "logistic"}, "problem__score_bound": 15.0},
            "score_bound must be in [problem.loss] of kind 'logistic', got it in [problem]",
        ),
        (
            {"problem__loss": "hinge", "problem__score_bound": 15.0},
            "score_bound must be in [problem.loss] of kind 'logistic', got it in [problem]",
        ),
        (
            {"problem__loss": {"kind": "hinge", "score_bound": 15.0}},
            "score_bound must be in [problem.loss] of kind 'logistic', got it in [problem.loss]",
        ),
        ({"problem__loss": "pinball"}, "problem.loss.quantile must be given"),
        ({"problem__loss": {"kind": "huber"}}, "problem.loss.width must be given"),
        (
            {"problem__loss": {"kind": "tukey", "scale": 2.0, "smoothing": 1.0}},
            "loss must be convex, got Tukey(scale=2.0)",
        ),
        ({"problem__loss": 3}, "problem.loss must be a name or a table with kind, got 3"),
        ({"problem__loss": {}}, "problem.loss must be a name or a table with kind, got {}"),
        (
            {"problem__loss": {"kind": "huber", "widht": 1.0}},
            "unknown key in [problem.loss] 'widht', did you mean 'width'? (known: smoothing, kind, width)",
        ),
        ({"problem__dataset": "digits"}, "dataset 'digits' takes no options, got 'examples'"),
        (
            {"problem__loss": {"kind": "pinball", "quantile": 1.0}},
            "[problem.loss]: quantile must be between 0 and 1, got 1.0",
        ),
        ({"participation__per_round": 7}, "[participation] for 'ours': per_round must be at most machines (6), got 7"),
        (
            {"participation__schedule": [[0]]},
            "schedule must be in [participation] of kind 'given', got it in [participation]",
        ),
        ({"participation__kind": "given"}, "participation.schedule must be given"),
        (
            {"participation__kind": "full"},
            "[participation] for 'ours': per_round must be 6 for kind 'full', got 3",
        ),
        (
            {"participation__per_round": 4, "participation__kind": "balanced"},
            "[participation] for 'ours': per_round must divide machines (6), got 4",
        ),
        ({"participation__rounds": 0}, "participation.rounds must be at least 1, got 0"),
        ({"protocol__1__label": "ours"}, "protocol labels must be distinct, not empty and without '/', got 'ours'"),
        ({"protocol__1__label": "a/b"}, "protocol labels must be distinct, not empty and without '/', got 'a/b'"),
        ({"sweep__per_round": [1.5]}, f"sweep.per_round must be {INTEGERS}, got [1.5]"),
        ({"sweep__per_round": [3, 3]}, f"sweep.per_round must be {INTEGERS}, got [3.0, 3.0]"),
        ({"sweep__per_round": [float("inf")]}, f"sweep.per_round must be {INTEGERS}, got [inf]"),
        ({"sweep__per_round": [float("nan")]}, f"sweep.per_round must be {INTEGERS}, got [nan]"),
        ({"sweep__mu": []}, "sweep.mu must be a list of distinct numbers, got []"),
        ({"sweep__mu": [0.0]}, "[sweep] for 'ours': mu must be positive, got 0.0"),
        ({"sweep__mu": [float("nan")]}, "[sweep] for 'ours': mu must be positive, got nan"),
        (
            {"sweep": {"noise_std": [0, -1.0]}},
            "[sweep] for 'ours': noise_std must be finite and not negative, got -1.0",
        ),
        (
            {"sweep__noise_std": [0.0]},
            "[sweep] for 'ours': mu or noise_std must be given, not both, got mu = 1.0 and noise_std = 0.0. "
            "Leave one out: mu is a GDP parameter, noise_std is the noise itself",
        ),
        ({"protocol__0__grid": {"clip": [1.0, 0.0]}}, "[[protocol]] 'ours': clip must be positive, got 0.0"),
        (
            {"protocol__0__grid": {"clip": [1.0, 1.0]}},
            "the grid's clip of 'ours' must be a list of distinct numbers, got [1.0, 1.0]",
        ),
        ({"protocol__0__grid": {"radius": [-1.0]}}, "[[protocol]] 'ours': radius must be positive, got -1.0"),
        ({"sweep__seeds": 0}, "[sweep] for 'ours': seeds must be at least 1, got 0"),
        ({"evaluation__metrics": []}, "evaluation.metrics must name at least one metric, got []"),
        (
            {"evaluation__metrics": ["excess_risk", "test_accuracy"]},
            "[evaluation] for 'ours': metric 'test_accuracy' must have a loss that classifies, and the problem has "
            "none",
        ),
        ({"evaluation__delta": 1.0}, "evaluation.delta must be between 0 and 1, got 1.0"),
        (
            {"evaluation__metrics": ["distance"]},
            "[[protocol]] 'ours': evaluation.select 'excess_risk' must be recorded, got distance. "
            "Choose one of these, or add it to what runs record (evaluation.metrics in a file)",
        ),
        ({"evaluation__every": 0}, "evaluation.every must be at least 1, got 0"),
        (
            {"evaluation__averaged": ["gradient_nrm"]},
            "unknown metric in evaluation.averaged 'gradient_nrm', did you mean 'gradient_norm'?",
        ),
        (
            {"evaluation__averaged": ["gradient_norm"]},
            "[[protocol]] 'ours': metric in evaluation.averaged 'gradient_norm' must be recorded, got test_loss, "
            "excess_risk, distance, noise_norm. Choose one of these, or add it to what runs record "
            "(evaluation.metrics in a file)",
        ),
        ({"sweep__records": [2, 4]}, "sweep.records must go with [problem.partition], got none"),
        (
            {"problem__partition": {"kind": "iid"}, "sweep__records": [4, 99]},
            "problem.partition.records must be at most 10, got 99",
        ),
    ],
)
def test_a_value_out_of_range_is_refused(change, message):
    assert refusal(small(**change)) == message


@pytest.mark.parametrize("section", ["title", "problem", "participation", "protocol"])
def test_a_missing_section_is_named(section):
    raw = small()
    del raw[section]
    assert refusal(raw) == f"{section} must be given"


@pytest.mark.parametrize("size", ["machines", "per_round"])
def test_a_missing_size_is_named(size):
    raw = small(problem__options={"examples": 60, "features": 3})  # not split, or that would say how many there are
    del raw["participation"][size]
    assert refusal(raw).endswith(f"participation.{size} must be given, or swept")


def test_a_given_schedule_fixes_per_round():
    given = {"kind": "given", "machines": 6, "schedule": [[0, 1], [2, 3]]}
    assert listed.jobs(experiment.parse(small(participation=given)))[0].prepare().static.size == (6, 2, 2)
    message = refusal(small(participation=given, sweep__per_round=[3]))
    assert message == "[sweep] for 'ours': per_round must be 2 for kind 'given', got 3"


def test_a_protocols_other_iterate_may_be_expected():
    expected = experiment.parse(small(expected__0__iterate="last")).expected[0]
    assert (expected.metric, expected.iterate) == ("excess_risk", "last")
    assert "unknown metric in [[expected]] 'excess_risk_last'" in refusal(small(expected__0__metric="excess_risk_last"))
    message = refusal(small(expected__0__metric="noise_norm", expected__0__iterate="last"))
    assert message == "unknown iterate of 'noise_norm' in [[expected]] 'last' (known: output)"


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "marked.toml"
    path.write_text(SMALL, encoding="utf-8-sig")
    assert reading.read_toml(path) == tomllib.loads(SMALL)


@pytest.fixture
def file(tmp_path: Path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("title", "other", lambda e: e.title),
        ("problem.radius", 3.5, lambda e: e.problem.radius),
        ("problem.options.examples", 30, lambda e: e.problem.options["examples"]),
        ("sweep.seeds", [4, 5], lambda e: e.sweep.seeds),
        ("sweep.mu", [3.0], lambda e: e.sweep.over["mu"]),
        ("sweep.clip", [3.0], lambda e: e.sweep.over["clip"]),
        ("protocol.0.clip", 1.5, lambda e: e.protocol[0].settings["clip"]),
        ("protocol.ours.clip", 1.5, lambda e: e.protocol[0].settings["clip"]),
        ("protocol.noisy_sgd.clip", 1.5, lambda e: e.protocol[1].settings["clip"]),
        ("expected.0.cells.0.value", 0.5, lambda e: e.expected[0].cells[0].value),
        ("evaluation.every", 2, lambda e: e.evaluation.every),
    ],
)
def test_set_changes_only_its_key(file, key, value, read):
    before, after = experiment.load(file), experiment.load(file, {key: value})
    raw = copy.deepcopy(tomllib.loads(SMALL))
    reading._change(raw, key, value)
    assert read(after) == value
    assert experiment.to_mapping(after) != experiment.to_mapping(before)
    assert after == experiment.parse(raw)


def test_set_gives_a_named_loss_its_settings(tmp_path):
    path = tmp_path / "named.toml"
    path.write_text(SMALL.replace("[problem]\n", '[problem]\nloss = "absolute"\n'), encoding="utf-8")
    assert experiment.load(path, {"problem.loss.smoothing": 2.0}).problem.loss.smoothing == 2.0
    other = experiment.load(path, {"problem.loss.kind": "huber", "problem.loss.width": 0.5}).problem.loss
    assert (other.kind, other.width) == ("huber", 0.5)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("protocol.2.clip", "no entry '2' in 'protocol.2.clip' (there are 2, numbered from 0)"),
        ("protocol.nobody.clip", "no entry 'nobody' in 'protocol.nobody.clip' (there are 2, numbered from 0)"),
        ("title.x", "no setting 'title.x' to change"),
        ("problem.dataset.x", "problem.dataset must be a string, got {'kind': 'least_squares', 'x': 1}"),
        ("problem.radius.x.y", "no setting 'problem.radius.x.y' to change"),
    ],
)
def test_set_refuses_an_unknown_path(file, key, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        experiment.load(file, {key: 1})
    assert str(caught.value) == message


def test_an_unknown_experiment_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="unknown experiment 'quikstart', did you mean 'quickstart'"):
        experiment.load("quikstart")


def test_a_folder_or_another_file_is_no_experiment(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "hostname").write_text("me")
    for given in ("empty", "hostname"):
        wanted = "experiment must be a .toml file or a bundled name"
        with pytest.raises(Refusal, match=rf"^{wanted}, got '\S+/{given}'. See fedprivjax list experiments$"):
            experiment.load(tmp_path / given)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="no experiment file"):
        experiment.load(tmp_path / "absent.toml")
    for content in (b"title = ", b'title = "\xff"'):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(ValueError, match=r"^bad\.toml is not valid TOML: [^\n]+$"):
            experiment.load(tmp_path / "bad.toml")


OWN = '''
from dataclasses import dataclass
from typing import Any

from flax import struct

from fedprivjax.protocols.noisy_sgd import SGD


@struct.dataclass
class Heavy(SGD):
    """SGD with a setting of its own."""

    beta: Any = 0.5
    kind: str = struct.field(pytree_node=False, default="plain")

    def __post_init__(self):
        if isinstance(self.beta, float) and self.beta >= 1:
            raise ValueError(f"beta must be below 1, got {self.beta}")


@struct.dataclass
class Needy(SGD):
    weight: Any = struct.field(kw_only=True)


@dataclass(frozen=True)
class Plain(SGD):
    """No pytree."""


class NoDataclass:
    pass
'''


@pytest.fixture
def own(tmp_path):
    """Folder of an experiment file, with a user-defined module."""
    (tmp_path / "my_protocols.py").write_text(OWN, encoding="utf-8")
    return tmp_path


def heavy(name="my_protocols:Heavy", **settings):
    return small(protocol__1={"name": name, "step_size": 0.1, "privacy": {"kind": "messages"}, **settings})


def test_a_custom_algorithm_is_found_next_to_the_file(own):
    raw = heavy(beta=0.9, mu=np.inf)
    (own / "mine.toml").write_text(tomli_w.dumps(raw), encoding="utf-8")
    parsed = experiment.load(own / "mine.toml")
    assert parsed.protocol[1].label == "Heavy"
    made = experiment.make_protocol(parsed.protocol[1])
    assert (made.name, made.algorithm.beta, made.mu) == ("Heavy", 0.9, np.inf)
    assert experiment.parse(tomllib.loads(tomli_w.dumps(experiment.to_mapping(parsed))), own) == parsed
    assert [job.label for job in listed.jobs(parsed)] == ["ours", "Heavy"]


@pytest.mark.parametrize(
    "swept",
    [{"sweep__algorithm": {"weight": [2.0, 3.0]}}, {"protocol__0__grid": {"algorithm": {"weight": [2.0, 3.0]}}}],
    ids=["sweep", "grid"],
)
def test_a_setting_without_a_default_may_be_swept(own, swept):
    entry = {"name": "my_protocols:Needy", "step_size": 0.1, "privacy": {"kind": "records", "batch": 2}}
    raw = small(protocol=[entry], sweep__mu=[2.0], expected=[], problem__partition={"kind": "iid"}, **swept)
    (job,) = listed.jobs(experiment.parse(raw, own))
    start = job.prepare()
    assert [protocol.algorithm.weight for protocol in start.configurations.protocols] == [2.0, 3.0]


def test_two_folders_may_have_modules_of_one_name(own, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "my_protocols.py").write_text(OWN.replace("Any = 0.5", "Any = 0.25"), encoding="utf-8")
    found = [experiment.parse(heavy(), folder).protocol[1].parts["algorithm"] for folder in (own, other)]
    assert [one.beta for one in found] == [0.5, 0.25]


def test_a_module_imports_modules_of_its_folder(own):
    (own / "inner.py").write_text("from my_protocols import Heavy", encoding="utf-8")
    assert type(experiment.parse(heavy("inner:Heavy"), own).protocol[1].parts["algorithm"]).__name__ == "Heavy"


def test_an_installed_modules_protocol():
    parsed = experiment.parse(small(protocol__1={"name": "fedprivjax.protocols:NoisySGD"}))
    assert parsed.protocol[1].method is NoisySGD


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"bta": 0.9}, "[[protocol]] 'Heavy': unknown key 'bta', did you mean 'beta'?"),
        (
            {"grid": {"algorithm.kind": [1.0]}},
            "[[protocol]] 'Heavy': unknown key in its grid 'algorithm.kind', did you mean ",
        ),
        ({"name": "my_protocols:Hevy"}, "unknown protocol in my_protocols 'Hevy', did you mean 'Heavy'?"),
        (
            {"name": "my_protocol:Heavy"},
            "protocol module 'my_protocol' must be installed, next to the experiment file",
        ),
        ({"name": ":Heavy"}, "protocol module '' must be installed, next to the experiment file"),
        (
            {"name": "my_protocols:NoDataclass"},
            "protocol 'my_protocols:NoDataclass' must be an Algorithm or a LocalAlgorithm, got ",
        ),
        ({"name": "dataclasses:dataclass"}, "protocol 'dataclasses:dataclass' must be an Algorithm or a LocalAlgor"),
        (
            {"name": "fedprivjax.plan.participation:Full", "machines": 3},
            "protocol 'fedprivjax.plan.participation:Full' must be an Algorithm or a LocalAlgorithm, got ",
        ),
        ({"name": "my_protocols:Needy"}, "[[protocol]] 'Needy': algorithm.weight must be given there, or swept"),
        (
            {"name": "my_protocols:Plain"},
            "[[protocol]] 'Plain': algorithm Plain must be a flax.struct.dataclass, got a class without that decorator",
        ),
        (
            {"beta": 1.5},
            "[[protocol]] 'Heavy': algorithm 'my_protocols:Heavy' must be made without an error, got ValueError: "
            "beta must be below 1, got 1.5 (my_protocols.py, line ",
        ),
        ({"grid": {"algorithm.beta": [0.5, 1.5]}}, "beta must be below 1, got 1.5"),
    ],
)
def test_a_custom_algorithm_is_validated_like_a_built_in_method(own, entry, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        experiment.parse(heavy(**entry), own)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("import absent_module", "ModuleNotFoundError: No module named 'absent_module' (faulty.py, line 1)"),
        ("\n1 / 0", "ZeroDivisionError: division by zero (faulty.py, line 2)"),
        ("x = (", "SyntaxError: '(' was never closed (faulty.py, line 1)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused_with_the_cause(tmp_path, content, cause):
    (tmp_path / "faulty.py").write_text(content, encoding="utf-8")
    with pytest.raises(Refusal) as caught:
        experiment.parse(heavy("faulty:Heavy"), tmp_path)
    assert str(caught.value) == f"protocol module 'faulty' must be importable, got {cause}"
    assert caught.value.__cause__ is not None  # --traceback shows where


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_leaf_can_be_swept_and_no_static_setting(name):
    method = PROTOCOLS[name][0]
    own = [field for field in fields(method) if field.metadata.get("pytree_node", True)]
    leaves = {field.name for field in own} - {
        "schedule",
        "strengths",
        "vector_sum",
        "epoch",
        "stds",
        "slack",
        "server",
        "local",
        "server_steps",
        "expected",
        "encoded_norm",
        "known",
    }
    assert set(sweepable(method)) == leaves | {"mu", "epsilon", "noise_std", "radius", "low", "high", "scale"}
    assert not {"trust", "batch", "noise_schedule"} & set(sweepable(method))
    assert {"step_size", "clip"} <= set(sweepable(method))


CURVED = {"name": "noisy_minibatch_sgd", "sampler": "full"}


def test_a_batch_that_its_sampler_would_ignore_is_refused():
    assert refusal(small(protocol__1={**CURVED, "batch": 2})) == (
        "[[protocol]] 'noisy_minibatch_sgd': batch must be left out with sampler = 'full', which uses all records, "
        "got 2. Use sampler = 'subset' for minibatches"
    )


def test_a_setting_of_one_protocol_is_swept_in_its_grid():
    raw = small(protocol__1={**CURVED, "grid": {"strong_convexity": [0, 0.5]}})
    assert experiment.parse(raw).protocol[1].grid == {"strong_convexity": [0.0, 0.5]}
    assert refusal(small(protocol__1=CURVED, sweep__strong_convexity=[0.5])) == (
        "sweep.strong_convexity must be a setting of every protocol, and 'ours' has none. "
        "Move it to the grid of the protocols that do"
    )


def test_a_common_setting_may_be_swept_at_zero():
    accelerated = {**CURVED, "name": "accelerated_minibatch_sgd"}
    raw = small(protocol=[CURVED, accelerated], sweep={"strong_convexity": [0, 0.5], "noise_std": [0, 1]}, expected=[])
    assert experiment.parse(raw).real_axes == {"strong_convexity": [0.0, 0.5], "noise_std": [0.0, 1.0]}
    raw["sweep"]["strong_convexity"] = [0.5, -1.0]
    assert refusal(raw).startswith("[sweep] for 'noisy_minibatch_sgd': strong_convexity must be ")
    raw["sweep"]["strong_convexity"] = [float("nan")]
    assert "nan" in refusal(raw)


def test_a_protocols_own_value_is_not_swept():
    raw = small(sweep__clip=[0.1, 0.2], protocol__0__grid={"step_scale": [1.0, 2.0]}, protocol__0__clip=1.0)
    first, second = listed.jobs(experiment.parse(raw))
    assert list(first.prepare().axes) == ["mu", "step_scale"]
    assert second.prepare().axes["clip"].tolist() == [0.1, 0.2]
