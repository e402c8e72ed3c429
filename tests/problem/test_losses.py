from math import inf, sqrt

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import expit, logsumexp

from fedprivjax.problem.linear_loss import Kinked, LinearLoss
from fedprivjax.problem.losses import (
    Absolute,
    GemanMcClure,
    Hinge,
    Huber,
    Logistic,
    Pinball,
    Softmax,
    Squared,
    Tukey,
)
from fedprivjax.problem.models import Example, LinearModel

BOUND, RADIUS, LABEL_BOUND = 3.0, 0.7, 1.5
LOSSES = {
    "softmax": Softmax(4),
    "logistic": Logistic(),
    "clipped logistic": Logistic(score_bound=8.0),
    "squared": Squared(LABEL_BOUND),
    "huber": Huber(0.8),
    "hinge": Hinge(),
    "absolute": Absolute(),
    "pinball": Pinball(0.7),
    "geman-mcclure": GemanMcClure(2.0),
    "tukey": Tukey(4.0),
}
SMOOTH = [name for name, loss in LOSSES.items() if not isinstance(loss, Kinked)]
KINKED = [name for name, loss in LOSSES.items() if isinstance(loss, Kinked)]
STEEPEST = {"geman-mcclure": 2 / sqrt(3), "tukey": 4 / sqrt(5)}  # the error at which flattening losses flatten


def each(function):
    """Return a function's values for every example, as one program."""
    return jax.jit(jax.vmap(function))


def scores_and_labels(name, count=200, scale=5.0):
    rng = np.random.default_rng(11)
    if name == "softmax":
        return scale * rng.normal(size=(count, 4)), rng.integers(0, 4, count)
    if LOSSES[name].classifies:
        return scale * rng.normal(size=count), rng.integers(0, 2, count)
    return scale * rng.normal(size=count), rng.uniform(-LABEL_BOUND, LABEL_BOUND, count)


def closed_form(name, score, label):
    """Return the value and the derivative in the score, in float64."""
    if name == "softmax":
        p = np.exp(score - logsumexp(score))
        return logsumexp(score) - score[label], p - np.eye(4)[label]
    if name == "logistic":
        return np.logaddexp(0, score) - label * score, expit(score) - label
    if name == "clipped logistic":
        kept = np.clip(score, -8, 8)
        return np.logaddexp(0, kept) - label * kept, expit(kept) - label
    if name == "hinge":
        a = 2 * label - 1
        return max(0, 1 - a * score), -a * (a * score < 1)
    gap = score - label
    if name == "huber":
        return (gap**2 / 2, gap) if abs(gap) <= 0.8 else (0.8 * (abs(gap) - 0.4), 0.8 * np.sign(gap))
    if name == "geman-mcclure":
        return 2 * gap**2 / (4 + gap**2), 16 * gap / (4 + gap**2) ** 2
    if name == "tukey":
        left = max(0, 1 - gap**2 / 16)
        return 16 / 6 * (1 - left**3), gap * left**2
    if name == "absolute":
        return abs(gap), np.sign(gap)
    if name == "pinball":
        return max(-0.7 * gap, 0.3 * gap), 0.3 if gap > 0 else -0.7
    return gap**2 / 2, gap


@pytest.mark.parametrize("name", LOSSES)
def test_values_and_residuals(name):
    loss = LOSSES[name]
    scores, labels = scores_and_labels(name)
    expected = [closed_form(name, s, y) for s, y in zip(scores, labels, strict=True)]
    scores = jnp.asarray(scores, jnp.float32)
    np.testing.assert_allclose(each(loss.value)(scores, labels), [v for v, _ in expected], rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(each(loss.residual)(scores, labels), [r for _, r in expected], rtol=2e-5, atol=2e-6)


def central(name, score, label, width=1e-5):
    """Return the derivative in the score by central differences of the closed form."""
    change = [closed_form(name, score + sign * width, label)[0] for sign in (1, -1)]
    return (change[0] - change[1]) / (2 * width)


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("softmax", "clipped logistic")])
def test_residuals_are_derivatives(name):
    loss = LOSSES[name]
    scores, labels = scores_and_labels(name, scale=2.0)
    labels = labels.astype(np.float32)
    found = each(loss.residual)(jnp.asarray(scores, jnp.float32), labels)
    np.testing.assert_allclose(found, each(jax.grad(loss.value))(jnp.asarray(scores, jnp.float32), labels), atol=1e-6)
    differences = [central(name, s, y) for s, y in zip(scores, labels.astype(float), strict=True)]
    np.testing.assert_allclose(found, differences, atol=1e-5)


@pytest.mark.parametrize("name", KINKED)
def test_the_slope_at_a_kink_is_none(name):
    loss, labels = LOSSES[name], jnp.array([0.0, 1.0])
    kinks = loss.kink(labels)
    assert each(loss.value)(kinks, labels).tolist() == [0, 0]
    assert each(loss.residual)(kinks, labels).tolist() == [0, 0]
    assert each(jax.grad(loss.value))(kinks, labels).tolist() == [0, 0]
    assert kinks.tolist() == ([-1, 1] if name == "hinge" else [0, 1])


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_convex_in_the_score_where_they_say_so(name):
    one, labels = scores_and_labels(name)
    other = one[np.random.default_rng(14).permutation(len(one))]
    ends = [[closed_form(name, s, y)[0] for s, y in zip(scores, labels, strict=True)] for scores in (one, other)]
    middle = each(LOSSES[name].value)(jnp.asarray((one + other) / 2, jnp.float32), jnp.asarray(labels))
    below = (middle <= np.mean(ends, axis=0) * (1 + 1e-5) + 1e-5).all()
    assert below == LOSSES[name].convex


def test_a_score_bound_clips_scores_and_nothing_else():
    """Loss of Lowy & Razaviyayn's experiments: p of the clipped score, log(1e-12 + p), gradient p − y."""
    scores = np.random.default_rng(15).normal(size=200) * 20
    for label in (0.0, 1.0):
        p = expit(np.clip(scores, -15, 15))
        expected = -np.log(1e-12 + (p if label else 1 - p))
        given = jnp.asarray(scores, jnp.float32), jnp.full(200, label)
        loss = Logistic(score_bound=15.0)
        np.testing.assert_allclose(each(loss.value)(*given), expected, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(each(loss.residual)(*given), p - label, rtol=1e-4, atol=1e-7)
        within = np.abs(scores) < 15
        assert 20 < within.sum() < 180
        unclipped = each(Logistic().value)(*given)
        np.testing.assert_allclose(each(loss.value)(*given)[within], unclipped[within], rtol=1e-4, atol=2e-7)
        assert each(loss.value)(*given).max() == pytest.approx(15, abs=1e-5)
        np.testing.assert_array_equal(each(loss.correct)(*given), (p > 0.5) == (label == 1))


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "squared"])
@pytest.mark.parametrize("scale", [1e6, 1e30])
def test_huge_scores_stay_finite(name, scale):
    scores, labels = scores_and_labels(name, scale=scale)
    scores = jnp.asarray(scores, jnp.float32)
    assert np.isfinite(each(LOSSES[name].value)(scores, labels)).all()
    assert np.isfinite(each(LOSSES[name].residual)(scores, labels)).all()


def test_optax_agrees():
    scores, labels = scores_and_labels("softmax")
    one_hot = jnp.asarray(np.eye(4)[labels], jnp.float32)
    scores = jnp.asarray(scores, jnp.float32)
    values = each(Softmax(4).value)(scores, labels)
    np.testing.assert_allclose(values, optax.losses.softmax_cross_entropy(scores, one_hot), rtol=1e-5, atol=2e-6)
    score, label = jnp.asarray(scores[:, 0]), jnp.asarray(labels % 2, jnp.float32)
    np.testing.assert_allclose(
        each(Logistic().value)(score, label), optax.losses.sigmoid_binary_cross_entropy(score, label), rtol=1e-6
    )
    np.testing.assert_allclose(each(Squared().value)(score, label), optax.losses.l2_loss(score, label), rtol=1e-6)


def adversary(name):
    """Return parameters, features and a label near the gradient bound, on the ball if the loss needs one."""
    x = np.zeros(5)
    x[0] = BOUND
    if name == "softmax":
        params = np.zeros((4, 5))
        params[1, 0] = 20.0  # high score for class 1 with label 0
        return params, x, 0
    params = np.zeros(5)
    if name in STEEPEST:
        params[0] = STEEPEST[name] / BOUND
        return params, x, 0
    params[0] = RADIUS if name == "squared" else 20.0 * (-1 if name == "pinball" else 1)
    return params, x, 0 if LOSSES[name].classifies else -LABEL_BOUND


def flattest(name):
    """Return parameters of maximal curvature."""
    x = np.zeros(5)
    x[0] = BOUND
    if name == "softmax":
        params = np.zeros((4, 5))
        params[:2, 0] = 20.0  # two classes with probability 1/2 each
        return params, x, 0
    return np.zeros(5), x, 0


def random_cases(name, count=100):
    rng = np.random.default_rng(12)
    loss = LOSSES[name]
    _, labels = scores_and_labels(name, count)
    for label in labels:
        params = rng.normal(size=loss.shape(5))
        wanted = RADIUS * rng.uniform() if name == "squared" else rng.uniform(0, 5)
        x = rng.normal(size=5)
        yield params * wanted / np.linalg.norm(params), x * BOUND * rng.uniform() / np.linalg.norm(x), label


def model(name):
    """Return gradient and Hessian as jitted functions of (params, features, label)."""

    def gradient(params, features, label):
        example = Example(features, label, jnp.linalg.norm(features))
        return LinearModel(LOSSES[name]).gradients((params,), example)[0].written_out()

    return jax.jit(gradient), jax.jit(jax.jacfwd(gradient))


def as_arrays(name, case):
    params, features, label = case
    dtype = jnp.int32 if name == "softmax" else jnp.float32
    return jnp.asarray(params, jnp.float32), jnp.asarray(features, jnp.float32), jnp.asarray(label, dtype)


@pytest.mark.parametrize("name", LOSSES)
def test_lipschitz_is_a_bound_and_is_nearly_attained(name):
    bound = LOSSES[name].lipschitz(BOUND, RADIUS)
    gradient, _ = model(name)
    norms = [np.linalg.norm(gradient(*as_arrays(name, case))) for case in random_cases(name)]
    worst = np.linalg.norm(gradient(*as_arrays(name, adversary(name))))
    assert max(norms) <= bound * (1 + 1e-5)
    assert 0.999 * bound <= worst <= bound * (1 + 1e-5)


@pytest.mark.parametrize("name", SMOOTH)
def test_smoothness_is_a_bound_and_is_nearly_attained(name):
    bound = LOSSES[name].smoothness(BOUND)
    _, hessian = model(name)

    def curvature(case):
        params, features, label = as_arrays(name, case)
        return np.linalg.norm(np.asarray(hessian(params, features, label)).reshape(params.size, -1), 2)

    assert max(curvature(case) for case in random_cases(name)) <= bound * (1 + 1e-5)
    assert 0.999 * bound <= curvature(flattest(name)) <= bound * (1 + 1e-5)


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_move_at_most_by_the_smoothness(name):
    gradient, _ = model(name)
    bound = LOSSES[name].smoothness(BOUND)
    rng = np.random.default_rng(13)
    for params, x, label in random_cases(name, 40):
        moved = params + rng.normal(size=params.shape) * 10 ** rng.uniform(-1, 1)
        change = gradient(*as_arrays(name, (params, x, label))) - gradient(*as_arrays(name, (moved, x, label)))
        assert np.linalg.norm(change) <= bound * np.linalg.norm(params - moved) * (1 + 1e-4)


def test_constants_in_closed_form():
    mnist = sqrt(785)
    assert Softmax(10).lipschitz(mnist) == pytest.approx(39.6, abs=0.03)
    assert Softmax(10).smoothness(mnist) == pytest.approx(392.5)
    assert Logistic().lipschitz(2.0) == 2.0
    assert Logistic().smoothness(2.0) == 1.0
    assert Squared(1.0).lipschitz(2.0, 3.0) == 2 * (2 * 3 + 1)
    assert Squared(1.0).smoothness(2.0) == 4.0
    assert Squared(1.0).lipschitz(2.0) == inf
    assert Squared().lipschitz(2.0, 3.0) == inf
    assert (Hinge().lipschitz(2.0), Absolute().lipschitz(2.0)) == (2.0, 2.0)
    assert (Pinball(0.9).lipschitz(2.0), Pinball(0.2).lipschitz(2.0)) == (1.8, 1.6)
    assert (Huber(0.3).lipschitz(2.0), Huber(0.3).smoothness(2.0)) == (0.6, 4.0)
    assert [LOSSES[name].smoothness(2.0) for name in KINKED] == [inf, inf, inf]
    assert Logistic(score_bound=8.0).smoothness(2.0) == 1.0
    assert (GemanMcClure(4.0).lipschitz(2.0), Tukey(4.0).lipschitz(2.0)) == pytest.approx((2.598076, 2.289733))
    assert (GemanMcClure(4.0).smoothness(2.0), Tukey(4.0).smoothness(2.0)) == (4.0, 4.0)


@pytest.mark.parametrize("name", STEEPEST)
def test_constants_of_robust_losses_on_a_fine_grid_in_float64(name):
    """max |ψ| and max |ψ'| by brute force, with the slope by central differences of the closed form."""
    gaps, width = np.linspace(-8, 8, 8001), 1e-4
    slope = [np.subtract(*(closed_form(name, gap + sign * width, 0.0)[1] for sign in (1, -1))) for gap in gaps]
    steepest = max(abs(closed_form(name, gap, 0.0)[1]) for gap in gaps)
    assert LOSSES[name].lipschitz(BOUND) == pytest.approx(BOUND * steepest, rel=1e-5)
    assert LOSSES[name].smoothness(BOUND) == pytest.approx(BOUND**2 * np.max(np.abs(slope)) / (2 * width), rel=1e-5)
    lowest = {"geman-mcclure": -0.25, "tukey": -0.8}[name]
    assert np.min(slope) / (2 * width) == pytest.approx(lowest, rel=1e-4)


def test_correct():
    scores = jnp.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    assert each(Softmax(3).correct)(scores, jnp.array([1, 2])).tolist() == [1.0, 0.0]
    score, label = jnp.array([-1.0, -1.0, 1.0, 1.0]), jnp.array([0.0, 1.0, 0.0, 1.0])
    for loss in (Logistic(), Logistic(score_bound=8.0), Hinge()):
        assert each(loss.correct)(score, label).tolist() == [1.0, 0.0, 0.0, 1.0]
    for loss in (Squared(), Huber(1.0), Absolute(), Pinball(0.5), Tukey(1.0)):
        assert loss.correct(score, label) is None


def test_shapes_and_label_ranges():
    assert (Softmax(3).shape(5), Logistic().shape(5), Squared().shape(5)) == ((3, 5), (5,), (5,))
    assert (Softmax(3).outputs, Logistic().outputs) == (3, 0)
    assert Softmax(3).label_range() == (0, 2)
    assert Logistic().label_range() == Hinge().label_range() == (0, 1)
    assert [loss.classifies for loss in LOSSES.values()] == [True, True, True, False, False, True, *4 * [False]]
    assert Absolute().label_range() == Pinball(0.5).label_range() == Huber(1.0).label_range() == (-inf, inf)
    assert Squared(2.0).label_range() == (-2.0, 2.0)
    assert Squared().label_range() == (-inf, inf)


@pytest.mark.parametrize("classes", [1, 0, -3])
def test_one_class_is_no_classification(classes):
    with pytest.raises(ValueError, match=rf"^classes must be at least 2, got {classes}$"):
        Softmax(classes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Logistic(score_bound=0.0), "score_bound must be positive, got 0.0"),
        (lambda: Huber(-1.0), "width must be positive, got -1.0"),
        (lambda: Huber(inf), "width must be finite, got inf"),
        (lambda: GemanMcClure(0.0), "scale must be positive, got 0.0"),
        (lambda: Tukey(-1.0), "scale must be positive, got -1.0"),
        (lambda: Pinball(0), "quantile must be between 0 and 1, got 0"),
        (lambda: Pinball(1.0), "quantile must be between 0 and 1, got 1.0"),
        (lambda: Pinball(float("nan")), "quantile must be between 0 and 1, got nan"),
    ],
)
def test_settings_are_refused(make, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared)
        make()
    assert str(caught.value) == message


def test_a_custom_loss_needs_a_value_only():
    class Distance(LinearLoss):
        def value(self, score, label):
            return jnp.abs(score - label)

    example = Example(jnp.array([1.0, 2.0]), jnp.float32(1.0), jnp.float32(sqrt(5)))
    (gradient,) = LinearModel(Distance()).gradients((jnp.array([3.0, 0.0]),), example)
    assert gradient.written_out().tolist() == [1.0, 2.0]
    with pytest.raises(TypeError, match="must define lipschitz"):
        Distance().lipschitz(1.0)
    with pytest.raises(TypeError, match="must define smoothness"):
        Distance().smoothness(1.0)
    with pytest.raises(TypeError, match="must define value"):
        LinearLoss().value(jnp.float32(0), jnp.float32(0))
    with pytest.raises(TypeError, match="must define kink"):
        Kinked().kink(jnp.float32(0))
    with pytest.raises(TypeError, match="must define slopes"):
        Kinked().slopes(jnp.float32(0))


def test_a_custom_loss_that_classifies_has_an_accuracy_and_its_classes_as_labels():
    class OneScore(LinearLoss):
        classifies = True

    class ThreeScores(LinearLoss):
        outputs = 3

    scores, labels = jnp.array([-1.0, -1.0, 1.0, 1.0]), jnp.array([0.0, 1.0, 0.0, 1.0])
    assert each(OneScore().correct)(scores, labels).tolist() == [1.0, 0.0, 0.0, 1.0]
    rows = jnp.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    assert each(ThreeScores().correct)(rows, jnp.array([1, 2])).tolist() == [1.0, 0.0]
    assert (OneScore().label_range(), ThreeScores().label_range()) == ((0, 1), (0, 2))
    assert LinearLoss().correct(scores[0], labels[0]) is None
    assert LinearLoss().label_range() == (-inf, inf)


def test_a_custom_kinked_loss_needs_its_kink_and_slopes_only():
    class Overshoot(Kinked):
        def kink(self, label):
            return label

        def slopes(self, label):
            return 0.0, 2.0

    scores = jnp.array([0.0, 1.0, 3.0])
    assert each(Overshoot().value)(scores, jnp.ones(3)).tolist() == [0, 0, 4]
    assert each(Overshoot().residual)(scores, jnp.ones(3)).tolist() == [0, 0, 2]
