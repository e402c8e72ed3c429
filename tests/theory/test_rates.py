"""Rates: the worst excess over linear losses of all strengths decreases as the theorems state."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedprivjax import Ball, DPMu2, Full, NoisySGD, general_problem, sweep

pytestmark = pytest.mark.slow

DIMENSION, RADIUS = 50, 0.5
STRENGTHS = 2.0 ** np.arange(-11, 1)  # slopes of the loss, up to G; the hardest slope depends on the setting


def value(w, z):
    return jnp.vdot(w, z)


def excess_risk(w):
    return w[0] + RADIUS  # times the strength


def linear(strength, examples):
    """f(w) = strength·w₁ on a ball, with G = 1 declared: only privacy noise causes an error."""
    direction = np.zeros((examples, DIMENSION), np.float32)
    direction[:, 0] = strength
    return general_problem(
        value,
        direction,
        jnp.zeros(DIMENSION),
        constraint=Ball(RADIUS),
        lipschitz=1.0,
        smoothness=1e-6,
        excess=excess_risk,
    )


def worst(protocol, *, rounds=64, machines=4, mu=8.0):
    """Largest mean excess over the strengths."""
    excess = []
    for strength in STRENGTHS:
        problem = linear(strength, rounds * machines)
        options = {"over": {"mu": [mu]}, "seeds": 32, "eval_every": rounds, "metrics": ["excess_risk"]}
        runs = sweep(protocol, problem, Full(machines), **options)
        excess.append(strength * float(runs["excess_risk"].mean()))
    return max(excess)


def slope(protocol, name, values):
    return np.polyfit(np.log(values), np.log([worst(protocol, **{name: value}) for value in values]), 1)[0]


@pytest.mark.parametrize(
    ("protocol", "name", "values", "expected"),
    [
        (DPMu2(), "rounds", [32, 512], -1.0),
        (DPMu2(), "machines", [1, 16], -0.5),
        (DPMu2(), "mu", [2.0, 32.0], -1.0),
        (DPMu2(trust="server"), "rounds", [32, 512], -1.0),
        (DPMu2(trust="server"), "machines", [1, 16], -1.0),
        (DPMu2(cancel=False), "rounds", [32, 512], -0.5),  # noise that persists halves the exponent
        (NoisySGD(average=True), "rounds", [32, 512], -0.5),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_worst_excess_falls_at_the_theorems_rate(protocol, name, values, expected):
    assert slope(protocol, name, values) == pytest.approx(expected, abs=0.12)
