import copy
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from fedprivjax import experiment
from fedprivjax.datasets import mnist
from fedprivjax.datasets.insurance import available as insurance_available
from fedprivjax.experiment import read as reading
from fedprivjax.experiment import run as runner
from fedprivjax.plan.participation import Balanced, Full, Given, Uniform
from fedprivjax.problem.losses import Absolute, Hinge, Huber, Logistic, Pinball
from fedprivjax.problem.smoothing import Moreau

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

[record]
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


def refusal(raw):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the caller looks at all of it
        runner.jobs(experiment.parse(raw))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_experiment_round_trips(name):
    parsed = experiment.load(name)
    raw = experiment.to_mapping(parsed)
    assert experiment.parse(raw) == parsed
    assert experiment.parse(tomllib.loads(tomli_w.dumps(raw))) == parsed


def test_what_round_trips_is_not_all_alike():
    assert len({str(experiment.to_mapping(experiment.load(name))) for name in BUNDLED}) == len(BUNDLED) >= 7


AT_HAND = {"mnist": mnist.available, "mnist_pairs": mnist.available, "insurance": insurance_available}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.mnist if "mnist" in experiment.load(name).problem.dataset else ())
        for name in BUNDLED
    ],
)
def test_a_bundled_experiment_can_be_prepared(name):
    parsed = experiment.load(name)
    if not AT_HAND.get(parsed.problem.dataset, lambda: True)():
        pytest.skip(f"the {parsed.problem.dataset} files are at hand nowhere")
    fewer = {"seeds": 1, "trials": parsed.sweep.trials and 1}
    small = parsed.model_copy(update={"sweep": parsed.sweep.model_copy(update=fewer)})
    prepared = runner.jobs(small)
    places = {(job.label, *job.shape.values()) for job in prepared}
    assert len(places) == len(prepared) >= len(parsed.protocol) * len(small.shapes)
    assert all(np.isfinite(job.prepare().members.step_size).all() for job in prepared)


def test_small_settings_reach_the_objects():
    first, second = runner.jobs(experiment.parse(small()))
    assert (first.label, second.label) == ("ours", "noisy_sgd")
    assert first.prepare().first.noise_schedule == "gap"
    assert first.prepare().recipe.size == (6, 3, 4)
    assert {name: axis.tolist() for name, axis in first.prepare().axes.items()} == {"mu": [1, 2], "clip": [0.5, 2]}
    assert first.prepare().problem.constraint.radius == 2.0
    assert not second.prepare().axes  # its own mu = inf is not swept over
    assert not second.prepare().members.noise_std.any()


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
    ],
)
def test_kinds_of_participation(kind, more, expected, rounds):
    settings = experiment.ParticipationSettings(kind=kind, machines=4, **more)
    assert experiment.make_participation(settings, {}) == (expected, rounds)


def test_a_fixed_partition_deals_the_pool():
    settings = experiment.parse(small(problem__partition={"kind": "iid", "seed": 3})).problem
    one, same = (experiment.make_problem(settings, 4).table.rows for _ in range(2))
    other = experiment.make_problem(settings.model_copy(update={"partition": {"kind": "iid", "seed": 4}}), 4).table.rows
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
        ({"record__evry": 2}, "evry", "every"),
        ({"record__metrics": ["test_los"]}, "test_los", "test_loss"),
        ({"record__select": "exces_risk"}, "exces_risk", "excess_risk"),
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
        ({"title": 3}, "title must be a valid string, got 3"),
        ({"problem": 3}, "[problem] must be a table, got 3"),
        ({"problem__radius": "2"}, "problem.radius must be a valid number, got '2'"),
        (
            {"problem__loss": "sofmax"},
            "problem.loss must be 'softmax', 'logistic', 'squared', 'hinge', 'absolute', 'pinball' or 'huber', "
            "got 'sofmax'",
        ),
        ({"problem__smoothing": "x"}, "problem.smoothing must be a valid number, got 'x'"),
        ({"problem__options": 5}, "problem.options must be a valid dictionary, got 5"),
        ({"problem__partition": 5}, "problem.partition must be a valid dictionary, got 5"),
        ({"problem__partition": {"kind": "iid", "seed": "a"}}, "problem.partition.seed must be an integer, got 'a'"),
        ({"problem__partition": {"alpha": 0.1}}, "problem.partition.kind must be given"),
        ({"sweep__anew": ["step_scal"]}, "unknown axis in sweep.anew 'step_scal' (known: mu, clip)"),
        (
            {"participation__reshuffle": False},
            "participation.reshuffle must go with kind 'balanced', got kind 'uniform'",
        ),
        (
            {"participation__kind": "given", "participation__schedule": [[0, 1]], "participation__rate": 0.5},
            "participation.rate must go with another kind, got kind 'given'",
        ),
        ({"participation": []}, "[participation] must be a table, got []"),
        ({"participation__machines": True}, "participation.machines must be a valid integer, got True"),
        ({"participation__machines": 6.5}, "participation.machines must be a valid integer, got 6.5"),
        ({"protocol": 3}, "[[protocol]] must be a table with a name, got 3"),
        ({"protocol": []}, "protocol must have at least one entry, got []"),
        ({"protocol": [{}]}, "[[protocol]] must be a table with a name, got {}"),
        ({"protocol__0__label": 3}, "protocol.0.label must be a valid string, got 3"),
        ({"protocol__0__clip": "x"}, "clip must be a positive number, got 'x'"),
        ({"protocol__0__grid": 3}, "the grid of dp_mu2 must be a table, got 3"),
        ({"protocol__0__grid": {"clip": 1.0}}, "protocol.0.grid.clip must be a valid list, got 1.0"),
        ({"sweep": 3}, "[sweep] must be a table, got 3"),
        ({"sweep__mu": "x"}, "sweep.mu.0 must be a valid number, got 'x'"),
        ({"sweep__mu": [True]}, "sweep.mu.0 must be a valid number, got True"),
        ({"sweep__seeds": "a"}, "sweep.seeds must be a valid integer, got 'a'"),
        ({"record": 3}, "[record] must be a table, got 3"),
        ({"record__metrics": "test_loss"}, "record.metrics must be a valid list, got 'test_loss'"),
        ({"record__every": 1.5}, "record.every must be a valid integer, got 1.5"),
        ({"expected": 3}, "expected must be a valid list, got 3"),
        ({"expected": [3]}, "[[expected]] must be a table, got 3"),
        ({"expected__0__cells": 3}, "expected.0.cells must be a valid list, got 3"),
        ({"expected__0__cells": [3]}, "a cell of [[expected]] must be a table, got 3"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_key(change, message):
    assert refusal(small(**change)) == message


@pytest.mark.parametrize(
    ("settings", "loss"),
    [
        ({"loss": "absolute"}, Absolute()),
        ({"loss": "absolute", "smoothing": 2}, Moreau(Absolute(), 2)),
        ({"loss": "pinball", "quantile": 0.9}, Pinball(0.9)),
        ({"loss": "pinball", "quantile": 0.9, "smoothing": 0.1}, Moreau(Pinball(0.9), 0.1)),
        ({"loss": "huber", "huber_width": 0.5}, Huber(0.5)),
    ],
)
def test_a_regression_loss_is_reached_by_its_settings(settings, loss):
    raw = small()
    raw["problem"].update(settings)
    parsed = experiment.parse(raw)
    assert experiment.make_problem(parsed.problem, 6).model.loss == loss
    assert experiment.parse(experiment.to_mapping(parsed)) == parsed


@pytest.mark.parametrize(
    ("settings", "loss"),
    [
        ({"loss": "logistic"}, Logistic()),
        ({"loss": "logistic", "score_bound": 15.0}, Logistic(15.0)),
        ({"loss": "hinge"}, Hinge()),
        ({"loss": "hinge", "smoothing": 0.1}, Moreau(Hinge(), 0.1)),
    ],
)
def test_a_classifiers_loss_is_reached_by_its_settings(settings, loss):
    problem = {"dataset": "logistic", "options": {"examples": 40, "features": 3, "test_examples": 5}, **settings}
    assert experiment.make_problem(experiment.ProblemSettings(**problem), 4).model.loss == loss


INTEGERS = "a list of distinct positive integers"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"problem__radius": -1.0}, "radius must be positive, got -1.0"),
        ({"problem__radius": float("nan")}, "radius must be positive, got nan"),
        ({"problem__smoothing": 2.0}, "problem.smoothing must go with a loss, got none"),
        ({"problem__loss": "absolute", "problem__smoothing": 0.0}, "problem.smoothing must be positive, got 0.0"),
        ({"problem__quantile": 0.5}, "problem.quantile must go with loss 'pinball', got none"),
        (
            {"problem__loss": "absolute", "problem__huber_width": 0.5},
            "problem.huber_width must go with loss 'huber', got loss 'absolute'",
        ),
        (
            {"problem__loss": "hinge", "problem__score_bound": 15.0},
            "problem.score_bound must go with loss 'logistic', got loss 'hinge'",
        ),
        ({"problem__loss": "pinball"}, "problem.quantile must be given for loss 'pinball'"),
        ({"problem__loss": "huber"}, "problem.huber_width must be given for loss 'huber'"),
        ({"problem__loss": "pinball", "problem__quantile": 1.0}, "quantile must be between 0 and 1, got 1.0"),
        ({"participation__per_round": 7}, "per_round must be at most machines (6), got 7"),
        ({"participation__schedule": [[0]]}, "participation.schedule must go with kind 'given', got kind 'uniform'"),
        ({"participation__kind": "given"}, "participation.schedule must be given for kind 'given'"),
        ({"participation__kind": "full"}, "per_round must be machines (6) at full participation, got 3"),
        (
            {"participation__per_round": 4, "participation__kind": "balanced"},
            "per_round must divide machines (6), got 4",
        ),
        ({"participation__rounds": 0}, "rounds must be at least 1, got 0"),
        ({"protocol__1__label": "ours"}, "protocol labels must be distinct, not empty and without '/', got 'ours'"),
        ({"protocol__1__label": "a/b"}, "protocol labels must be distinct, not empty and without '/', got 'a/b'"),
        ({"sweep__per_round": [1.5]}, f"sweep.per_round must be {INTEGERS}, got [1.5]"),
        ({"sweep__per_round": [3, 3]}, f"sweep.per_round must be {INTEGERS}, got [3.0, 3.0]"),
        ({"sweep__per_round": [float("inf")]}, f"sweep.per_round must be {INTEGERS}, got [inf]"),
        ({"sweep__per_round": [float("nan")]}, f"sweep.per_round must be {INTEGERS}, got [nan]"),
        ({"sweep__mu": []}, "sweep.mu must be a list of distinct numbers, got []"),
        ({"sweep__mu": [0.0]}, "mu must be positive, got 0.0"),
        ({"sweep__seeds": 0}, "seeds must be at least 1, got 0"),
        ({"record__metrics": []}, "record.metrics must name at least one metric, got []"),
        ({"record__delta": 1.0}, "record.delta must be between 0 and 1, got 1.0"),
        ({"record__metrics": ["distance"]}, "record.select must be a recorded metric (distance), got 'excess_risk'"),
        ({"record__every": 0}, "every must be at least 1, got 0"),
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
    raw = small()
    del raw["participation"][size]
    assert refusal(raw) == f"participation.{size} must be given, or swept"


def test_a_given_schedule_fixes_per_round():
    given = {"kind": "given", "machines": 6, "schedule": [[0, 1], [2, 3]]}
    assert runner.jobs(experiment.parse(small(participation=given)))[0].prepare().recipe.size == (6, 2, 2)
    message = refusal(small(participation=given, sweep__per_round=[3]))
    assert message == "per_round must be 2, as in participation.schedule, got 3"


def test_a_protocols_other_iterate_may_be_expected():
    expected = experiment.parse(small(expected__0__iterate="last")).expected[0]
    assert (expected.metric, expected.iterate) == ("excess_risk", "last")
    assert "unknown metric in [[expected]] 'excess_risk_last'" in refusal(small(expected__0__metric="excess_risk_last"))
    message = refusal(small(expected__0__metric="noise_norm", expected__0__iterate="last"))
    assert message == "unknown iterate of 'noise_norm' in [[expected]] 'last' (known: output)"


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
        ("record.every", 2, lambda e: e.record.every),
    ],
)
def test_set_reaches_its_place_and_only_that(file, key, value, read):
    before, after = experiment.load(file), experiment.load(file, {key: value})
    raw = copy.deepcopy(tomllib.loads(SMALL))
    reading._change(raw, key, value)
    assert read(after) == value
    assert experiment.to_mapping(after) != experiment.to_mapping(before)
    assert after == experiment.parse(raw)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("protocol.2.clip", "no entry '2' in 'protocol.2.clip' (there are 2, numbered from 0)"),
        ("protocol.nobody.clip", "no entry 'nobody' in 'protocol.nobody.clip' (there are 2, numbered from 0)"),
        ("title.x", "no setting 'title.x' to change"),
        ("problem.radius.x.y", "no setting 'problem.radius.x.y' to change"),
    ],
)
def test_set_refuses_a_path_that_leads_nowhere(file, key, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        experiment.load(file, {key: 1})
    assert str(caught.value) == message


def test_an_unknown_experiment_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="unknown experiment 'quikstart', did you mean 'quickstart'"):
        experiment.load("quikstart")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="no experiment file"):
        experiment.load(tmp_path / "absent.toml")
    for content in (b"title = ", b'title = "\xff"'):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(ValueError, match=r"^bad\.toml is not valid TOML: [^\n]+$"):
            experiment.load(tmp_path / "bad.toml")
