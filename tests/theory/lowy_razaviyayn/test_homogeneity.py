"""Units: every step, scale and bound must scale correctly with the units of the loss (s) and of the model (t)."""

import inspect

import numpy as np
import pytest

from fedprivjax.theory import lowy_razaviyayn as lr

UNITS = {  # argument: powers of the loss's and of the model's unit
    "diameter": (0, 1),
    "lipschitz": (1, -1),
    "smoothness": (1, -2),
    "strong_convexity": (1, -2),
    "deviation": (1, -1),
    "diversity": (2, -2),
    "spread": (2, -2),
    "variance": (2, -2),
    "gap": (1, 0),
    "stability": (1, 0),
    "step": (-1, 2),
    "v": (1, -2),
}
VALUES = {
    "rounds": 400,
    "records": 5000,
    "batch": 7,
    "machines": 9000,
    "per_round": 3000,
    "dimension": 12,
    "epsilon": 0.2,
    "delta": 1e-9,
    "load": 2e-5,
    "diameter": 1.7,
    "lipschitz": 2.3,
    "smoothness": 0.9,
    "strong_convexity": 0.2,
    "deviation": 1.1,
    "diversity": 0.8,
    "spread": 3.0,
    "variance": 1.3,
    "gap": 2.0,
    "stability": 0.01,
    "step": 0.02,
    "v": 5.0,
    "round_epsilons": [1e-4],
    "round_deltas": [1e-16],
}
CONSTANTS = ("records", "per_round", "dimension", "diameter", "lipschitz")
ONE_PASS = ("epsilon", "delta", "smoothness", "deviation", "machines", "diversity")
LOSS, STEP, CURVATURE, PURE = (1, 0), (-1, 2), (1, -2), (0, 0)
FUNCTIONS = {
    "minibatch_step": STEP,
    "minibatch_rounds": PURE,
    "minibatch_bound": LOSS,
    "minibatch_step_bound": LOSS,
    "uniform_stability": LOSS,
    "strong_stability": LOSS,
    "strong_step": STEP,
    "strong_step_bound": LOSS,
    "strong_rounds": PURE,
    "strong_rate": LOSS,
    "envelope_smoothness": CURVATURE,
    "envelope_strong_smoothness": CURVATURE,
    "envelope_strong_convexity": CURVATURE,
    "nonsmooth_bound": LOSS,
    "nonsmooth_strong_rounds": PURE,
    "acsa_v": CURVATURE,
    "acsa_bound": LOSS,
    "acsa_regularization": CURVATURE,
    "acsa_regularized_bound": LOSS,
    "accelerated_rounds": PURE,
    "accelerated_strong_rounds": PURE,
    "accelerated_rate": LOSS,
    "accelerated_strong_rate": LOSS,
    "accelerated_envelope_smoothness": CURVATURE,
    "accelerated_envelope_strong_smoothness": CURVATURE,
    "empirical_rate": LOSS,
    "empirical_strong_rate": LOSS,
    "nonsmooth_accelerated_strong_rounds": PURE,
    "one_pass_batch": PURE,
    "one_pass_strong_batch": PURE,
    "one_pass_bound": LOSS,
    "one_pass_rate": LOSS,
    "one_pass_strong_rate": LOSS,
    "shuffled_rounds": PURE,
    "shuffled_rate": LOSS,
    "local_lower_bound": LOSS,
    "central_lower_bound": LOSS,
    "classical_local_lower_bound": LOSS,
}
VARIANCES = {"minibatch_step_bound", "strong_step", "strong_step_bound"}


def call(name, loss, model):
    values = {
        key: value * loss ** UNITS[key][0] * model ** UNITS[key][1] if key in UNITS else value
        for key, value in VALUES.items()
    }
    if name in VARIANCES:
        values["variance"] = lr.Variance(*(values["variance"] * np.array([0.2, 0.3, 0.5])))
    one_pass = name.startswith("one_pass")
    kind, constants = (lr.OnePassConstants, CONSTANTS + ONE_PASS) if one_pass else (lr.ProblemConstants, CONSTANTS)
    values["problem"] = kind(**{key: values[key] for key in constants})
    function = getattr(lr, name)
    return function(**{key: values[key] for key in inspect.signature(function).parameters if key in values})


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("loss", "model"), [(8.0, 1.0), (1.0, 0.25), (3.0, 5.0)])
def test_units(name, loss, model):
    powers = FUNCTIONS[name]
    expected = call(name, 1.0, 1.0) * loss ** powers[0] * model ** powers[1]
    assert call(name, loss, model) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("form", ["strong", "convex", "tight"])
def test_units_of_stages(form):
    def plan(loss, model):
        scale = {key: VALUES[key] * loss**s * model**t for key, (s, t) in UNITS.items()}
        shape = {"gap": scale["gap"], "strong_convexity": scale["strong_convexity"], "variance": scale["variance"]}
        stages = lr.acsa_stages(rounds=40_000, smoothness=scale["smoothness"], **shape)
        bound = lr.acsa_bound(
            v=scale["v"],
            rounds=9,
            diameter=scale["diameter"],
            form=form,
            **{k: shape[k] for k in ("variance", "strong_convexity")},
        )
        return stages, lr.acsa_stages_bound(stages, **shape), bound

    stages, left, bound = plan(1.0, 1.0)
    scaled, scaled_left, scaled_bound = plan(4.0, 0.5)
    assert len(stages) > 2
    assert [s.rounds for s in scaled] == [s.rounds for s in stages]
    np.testing.assert_allclose([s.v for s in scaled], [16 * s.v for s in stages])
    np.testing.assert_allclose([scaled_left, scaled_bound], [4 * left, 4 * bound])
