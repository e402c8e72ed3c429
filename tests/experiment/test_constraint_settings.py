"""Constraint sets in `[problem]`: keys of each kind, sweeps over them, and messages."""

import tomllib

import pytest
import tomli_w

from fedprivjax import Ball, Box, L1Ball, Refusal, Simplex, WholeSpace
from fedprivjax.experiment import make_problem, parse, to_mapping
from fedprivjax.experiment.jobs import jobs
from fedprivjax.experiment.run import run

DATA = {"dataset": "logistic", "options": {"examples": 24, "features": 3}}


OWN = """
from typing import Any
import jax.numpy as jnp
from flax import struct
import fedprivjax as fpj

@struct.dataclass
class Signed(fpj.ConstraintSet):
    most: Any
    rising: tuple[bool, ...] = struct.field(pytree_node=False)

    @property
    def diameter(self):
        return self.most * 3**0.5

    def project(self, params):
        signs = jnp.where(jnp.array(self.rising), 1.0, -1.0)
        return signs * jnp.clip(signs * params, 0.0, self.most)

class Bare(fpj.ConstraintSet):
    def project(self, params):
        return params

fixed = Signed(2.0, (True, True, False))
number = 3
"""
SIGNED = {"constraint": {"kind": "signed:Signed", "most": 2.0, "rising": [True, True, False]}}


@pytest.fixture
def place(tmp_path):
    """Folder with a module of constraint sets."""
    (tmp_path / "signed.py").write_text(OWN)
    return tmp_path


def experiment(problem, folder=None, **sweep):
    raw = {"title": "sets", "problem": {**DATA, **problem}, "participation": {"machines": 4, "per_round": 2}}
    return parse({**raw, "protocol": [{"name": "noisy_sgd", "clip": 1.0}], "sweep": {"mu": [1.0], **sweep}}, folder)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        ({}, WholeSpace()),
        ({"radius": 2.0}, Ball(2.0)),
        ({"constraint": {"kind": "ball", "radius": 2.0}}, Ball(2.0)),
        ({"constraint": {"kind": "box", "low": -1.0, "high": 2.0}}, Box(-1.0, 2.0, dimension=3)),
        ({"constraint": "simplex"}, Simplex(1.0)),
        ({"constraint": {"kind": "simplex", "scale": 2.0}}, Simplex(2.0)),
        ({"constraint": {"kind": "l1_ball", "radius": 3.0}}, L1Ball(3.0)),
    ],
)
def test_a_file_names_a_constraint_set(problem, expected):
    read = experiment(problem)
    assert make_problem(read.problem, 4).constraint == expected
    assert parse(to_mapping(read)) == read


@pytest.mark.parametrize("problem", [SIGNED, {"constraint": "signed:fixed"}, {"constraint": {"kind": "signed:fixed"}}])
def test_a_file_names_a_custom_set(place, problem):
    read = experiment(problem, place)
    made = make_problem(read.problem, 4).constraint
    assert (type(made).__name__, made.most, made.rising) == ("Signed", 2.0, (True, True, False))
    assert parse(tomllib.loads(tomli_w.dumps(to_mapping(read))), place) == read


@pytest.mark.slow
def test_a_custom_sets_numbers_are_swept(place):
    read = experiment(SIGNED, place, most=[0.01, 0.02], seeds=1)
    read = read.model_copy(update={"participation": read.participation.model_copy(update={"rounds": 2})})
    (data,) = run(read).values()
    assert data["most"].values.tolist() == [0.01, 0.02]
    assert not data["diverged"].any()
    with pytest.raises(Refusal, match=r"^unknown key in \[sweep\] 'least'"):
        experiment(SIGNED, place, least=[1.0])


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ({"constraint": "signed:Sign"}, "unknown constraint in signed 'Sign', did you mean 'Signed'?"),
        ({"constraint": "signed:number"}, "constraint 'signed:number' must be a ConstraintSet, got 3"),
        ({"constraint": "signed:Bare"}, "constraint Bare must be a flax.struct.dataclass, got a class without"),
        (
            {"constraint": {"kind": "signed:Signed", "most": 1.0}},
            "constraint 'signed:Signed' must be given its options in its table, got missing a required argument",
        ),
        (
            {"constraint": {"kind": "signed:Signed", "mist": 1.0}},
            "unknown option of constraint signed:Signed 'mist', did you mean 'most'?",
        ),
        (
            {"constraint": {"kind": "signed:Signed", "found": 1.0}},
            "unknown option of constraint signed:Signed 'found' (known: most, rising)",
        ),
    ],
)
def test_mistakes_with_a_custom_set(place, problem, message):
    with pytest.raises(Refusal) as caught:
        experiment(problem, place)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("problem", "axis"),
    [
        ({"radius": 2.0}, "radius"),
        ({"constraint": {"kind": "l1_ball", "radius": 3.0}}, "radius"),
        ({"constraint": {"kind": "box", "low": -1.0, "high": 2.0}}, "high"),
    ],
)
def test_a_files_sweep_may_have_the_sets_numbers(problem, axis):
    assert experiment(problem, **{axis: [1.0, 2.0]}).real_axes[axis] == [1.0, 2.0]


def test_a_number_of_a_set_may_be_below_zero(place):
    box = {"constraint": {"kind": "box", "low": -1.0, "high": 2.0}}
    assert experiment(box, low=[-1.0, -0.5]).real_axes["low"] == [-1.0, -0.5]
    assert experiment(SIGNED, place, most=[-1.0]).real_axes["most"] == [-1.0]
    with pytest.raises(Refusal, match=r"radius must be positive, got -1\.0$"):
        jobs(experiment({"radius": 1.0}, radius=[-1.0]))


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ({"constraint": "bax"}, "unknown problem.constraint 'bax', did you mean 'box'?"),
        ({"constraint": {"kind": "bax"}}, "unknown problem.constraint 'bax', did you mean 'box'?"),
        ({"constraint": {"kind": "box", "low": 0.0}}, "problem.constraint.high must be given"),
        ({"low": 0.0}, "low must be in [problem.constraint] of kind 'box', got it in [problem]"),
        ({"constraint": "simplex", "radius": 1.0}, "problem.radius must be left out next to a constraint, got 1.0"),
        (
            {"constraint": {"kind": "simplex", "radius": 1.0}},
            "radius must be in [problem.constraint] of kind 'ball' or 'l1_ball', got it in [problem.constraint]",
        ),
    ],
)
def test_a_files_mistakes(problem, message):
    with pytest.raises(Refusal) as caught:
        experiment(problem)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (
            {"constraint": {"kind": "box", "low": 1.0, "high": 0.5}},
            "[problem.constraint]: high must be above low (1), got 0.5",
        ),
        (
            {"constraint": {"kind": "l1_ball", "radius": -1.0}},
            "[problem.constraint]: radius must be positive, got -1.0",
        ),
    ],
)
def test_a_sets_own_mistakes(problem, message):
    with pytest.raises(Refusal) as caught:
        make_problem(experiment(problem).problem, 4)
    assert str(caught.value) == message
