"""Participation schemes from a file: all parameters, sizes from the data, dropouts with every kind."""

import sys
import tomllib
import warnings

import numpy as np
import pytest
import tomli_w

from fedprivjax import (
    Balanced,
    Buffered,
    BySize,
    Cyclic,
    Delays,
    Dropouts,
    Full,
    Given,
    OnePass,
    PoissonCohorts,
    Refusal,
    SecretSubsets,
    Timed,
    Uniform,
    Varying,
    Weighted,
    cli,
    experiment,
)
from fedprivjax.experiment import jobs as listed

UNEQUAL = """
title = "unequal shares"

[problem]
dataset = "digits"
radius = 2.0
partition = { kind = "dirichlet", alpha = 0.1 }

[participation]
machines = 12
per_round = 3

[[protocol]]
name = "noisy_sgd"
clip = 1.0
step_size = 0.1

[sweep]
mu = [1]
seeds = 2

[evaluation]
metrics = ["test_loss"]
select = "test_loss"
"""
PEAKS, WEIGHTS = [0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]


def parsed(**participation):
    raw = tomllib.loads(UNEQUAL)
    return experiment.parse({**raw, "participation": participation}).participation


def law(**participation):
    return experiment.make_participation(parsed(**participation), {})[0]


def same(one, other):
    """Return True if two schemes sample the same schedule."""
    drawn = [each.draw(3, np.random.default_rng(1)) for each in (one, other)]
    np.testing.assert_array_equal(drawn[0].participants, drawn[1].participants)
    np.testing.assert_array_equal(drawn[0].present, drawn[1].present)
    assert (drawn[0].mean, drawn[0].expected) == (drawn[1].mean, drawn[1].expected)


TWO = {"machines": 4, "per_round": 2}
PER_RECORD = Buffered(4, 2, delays=Delays(hours=0.1, per_record=True))
KINDS = [
    ({**TWO}, Uniform(4, 2)),
    ({"kind": "full", "machines": 4}, Full(4)),
    ({"kind": "balanced", **TWO}, Balanced(4, 2)),
    ({"kind": "cyclic", **TWO}, Cyclic(4, 2)),
    ({"kind": "one_pass", "machines": 12, "per_round": 3}, OnePass(12, 3)),
    ({"kind": "given", "machines": 4, "schedule": [[0, 1], [2, 3], [1, 3]]}, Given(4, [[0, 1], [2, 3], [1, 3]])),
    ({"kind": "binomial", "machines": 4, "rate": 0.5}, Varying.binomial(4, 0.5)),
    ({"kind": "binomial", "machines": 9, "rate": 0.5, "tail": 1.5}, Varying.binomial(9, 0.5, 1.5)),
    ({"kind": "between", "machines": 4, "min_machines": 2, "max_machines": 3}, Varying.between(4, 2, 3)),
    ({"kind": "varying", "machines": 4, "sizes": [0.5, 0.5]}, Varying(4, (0.5, 0.5))),
    ({"kind": "weighted", **TWO, "weights": WEIGHTS}, Weighted(4, 2, WEIGHTS)),
    ({"kind": "weighted", **TWO, "weights": [[1, 1, 0, 0], WEIGHTS]}, Weighted(4, 2, [[1, 1, 0, 0], WEIGHTS])),
    ({"kind": "weighted", **TWO, "weights": WEIGHTS, "max_uses": 2}, Weighted(4, 2, WEIGHTS, 2)),
    ({"kind": "weighted", **TWO, "weights": WEIGHTS, "max_uses": [1, 2, 3, 4]}, Weighted(4, 2, WEIGHTS, [1, 2, 3, 4])),
    ({"kind": "diurnal", **TWO, "peaks": PEAKS}, Weighted.diurnal(4, 2, PEAKS)),
    (
        {"kind": "diurnal", **TWO, "peaks": PEAKS, "strength": 0.5, "period": 4, "max_uses": 3},
        Weighted.diurnal(4, 2, PEAKS, 0.5, 4, 3),
    ),
    ({"kind": "by_size", **TWO, "shares": [3, 3, 3, 2]}, BySize(4, 2, [3, 3, 3, 2])),
    ({"kind": "poisson_cohorts", "machines": 4, "rate": 0.5}, PoissonCohorts(4, 0.5)),
    ({"kind": "secret_subsets", **TWO}, SecretSubsets(4, 2)),
]


@pytest.mark.parametrize(
    ("given", "made"), KINDS, ids=[f"{given.get('kind')}-{i}" for i, (given, _) in enumerate(KINDS)]
)
def test_kinds(given, made):
    same(law(**given), made)
    same(law(**given, dropouts=0.3), Dropouts(made, 0.3))
    rates = np.linspace(0.1, 0.6, made.machines).tolist()
    same(law(**given, dropouts=rates), Dropouts(made, rates))


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"kind": "buffered", **TWO}, Buffered(4, 2)),
        (
            {"kind": "buffered", **TWO, "concurrency": 3, "delays": "log_normal", "hours": 2.0, "deviation": 0.5},
            Buffered(4, 2, 3, Delays("log_normal", 2.0, 0.5)),
        ),
        (
            {"kind": "buffered", **TWO, "hours": WEIGHTS, "max_staleness": 1},
            Buffered(4, 2, None, Delays(hours=WEIGHTS), 1),
        ),
        ({"kind": "buffered", **TWO, "hours": 0.1, "per_record": True}, PER_RECORD),
        ({"kind": "buffered", **TWO, "power": 1.0}, Buffered(4, 2, power=1.0)),
        ({**TWO, "delays": "constant", "hours": WEIGHTS}, Timed(Uniform(4, 2), Delays("constant", WEIGHTS))),
        ({**TWO, "delays": "exponential", "dropouts": 0.3}, Timed(Dropouts(Uniform(4, 2), 0.3))),
    ],
)
def test_delays(given, made):
    if made is PER_RECORD:
        assert law(**given) == made
        return
    same(law(**given), made)
    one, other = (scheme.draw(9, np.random.default_rng(1)) for scheme in (law(**given), made))
    np.testing.assert_array_equal(one.hours, other.hours)
    if isinstance(made, Buffered):
        np.testing.assert_array_equal(one.late.weights, other.late.weights)
        assert one.late.versions == other.late.versions


def test_one_pass_has_its_dropouts():
    same(law(kind="one_pass", machines=12, per_round=3, dropouts=0.4), Dropouts(OnePass(12, 3), 0.4))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({**TWO, "dropouts": 1.0}, "dropouts must be at least 0 and below 1, got 1.0"),
        ({**TWO, "dropouts": [0.5]}, "dropouts must be one rate or one for each of 4 machines, got 1"),
        ({"kind": "weighted", **TWO}, "participation.weights must be given"),
        ({"kind": "weighted", **TWO, "weights": [1.0]}, r"weights must be \[machines\] or \[period, machines\] = .*"),
        (
            {"kind": "weighted", **TWO, "weights": WEIGHTS, "max_uses": 0},
            "max_uses must be an integer of at least 1, got 0",
        ),
        (
            {**TWO, "hours": 2.0},
            "delays must be given with hours, deviation or per_record, got none for .*",
        ),
        ({**TWO, "delays": "constant", "hours": 0.0}, "hours must be positive and finite, one for .*, got 0.0"),
        (
            {"kind": "buffered", **TWO, "concurrency": 1},
            "concurrency must be from per_round .2. to machines .4., got 1.*",
        ),
        ({"kind": "cyclic", "machines": 4}, "participation.per_round must be given, or swept"),
        ({"kind": "binomial", "machines": 4, "rate": 0.5, "tail": -1.0}, "tail must be positive, got -1.0"),
        ({"kind": "poisson_cohorts", "machines": 4}, "participation.rate must be given"),
        (
            {"kind": "poisson_cohorts", "machines": 4, "rate": 1.5},
            "rate must be a probability above 0 and at most 1, got 1.5",
        ),
    ],
)
def test_refused(given, says):
    with pytest.raises(Refusal, match=f"^{says}$") as caught:
        law(**given)
    assert "\n" not in str(caught.value)


def prepared(**participation):
    raw = tomllib.loads(UNEQUAL)
    raw["participation"] |= participation
    (job,) = listed.jobs(experiment.parse(raw))
    return job.prepare()


def test_dataset_sizes_come_from_the_data():
    with pytest.warns(UserWarning, match="a run uses .*by_size"):
        wasteful = prepared()
    start = prepared(kind="by_size")
    plans = [start.first.plan for start in (wasteful, start)]
    assert plans[0].part_used < 50 < 90 < plans[1].part_used
    assert start.attributes()["data_used"] == plans[1].data_used
    (guarantee,) = start.privacy()[1]["guarantee"]
    assert '"public sizes"' in str(guarantee)


def test_the_command_line_reports_unused_data_once(tmp_path, monkeypatch, capsys):
    path = tmp_path / "unequal.toml"
    path.write_text(UNEQUAL, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["fedprivjax", "privacy", str(path)])
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with pytest.raises(SystemExit) as stopped:
            cli.main()
    said = capsys.readouterr().err
    assert not stopped.value.code
    assert said.count("warning: a run uses ") == said.count("\n") == 1


OWN_LAW = """
import numpy as np
from fedprivjax import Participation, Schedule

class FirstHalf(Participation):
    def __init__(self, machines, per_round=1, twice=False):
        self.machines, self.per_round, self.twice = machines, per_round, twice

    def draw(self, rounds, rng):
        rows = [rng.choice(self.machines // 2, self.per_round, replace=self.twice) for _ in range(rounds)]
        return Schedule(self.machines, np.array(rows, np.int32))
"""


def test_a_custom_scheme_is_named_by_its_import_path(tmp_path):
    (tmp_path / "laws.py").write_text(OWN_LAW, encoding="utf-8")
    settings = {"kind": "laws:FirstHalf", "machines": 8, "per_round": 2}
    raw = {**tomllib.loads(UNEQUAL), "participation": settings}
    found = experiment.parse(raw, tmp_path)
    made = experiment.make_participation(found.participation, {})[0]
    assert made.draw(5, np.random.default_rng(0)).participants.max() < 4
    again = experiment.parse(tomllib.loads(tomli_w.dumps(experiment.to_mapping(found))), tmp_path)
    assert again.participation.kind == "laws:FirstHalf"
    with pytest.raises(Refusal, match=r"^unknown participation in laws 'Half', did you mean 'FirstHalf'\?"):
        experiment.parse({**raw, "participation": {**settings, "kind": "laws:Half"}}, tmp_path)
    wrong = experiment.parse({**raw, "participation": {**settings, "width": 3}}, tmp_path).participation
    with pytest.raises(Refusal, match=r"^participation 'laws:FirstHalf' must take machines and its options, got "):
        experiment.make_participation(wrong, {})


def test_a_setting_that_every_protocol_fixes_is_not_swept():
    raw = tomllib.loads(UNEQUAL)
    raw["sweep"] = {**raw["sweep"], "clip": [0.5, 2.0]}
    with pytest.raises(Refusal, match=r"sweep.clip must be left out if every protocol sets clip$"):
        experiment.parse(raw)
