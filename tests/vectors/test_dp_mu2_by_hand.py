"""DP-mu2-FL written from the papers in NumPy agrees with every case, and each of five errors is located where it is.

The expected rounds, quantities and distances are derived from the recorded arrays, not from the implementation.
"""

import re
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "experiments/vectors"


@pytest.fixture(scope="module")
def cases(modules):
    return modules[0].load(FOLDER / "dp_mu2.npz")


def test_numpy_agrees_with_every_case(modules, cases):
    checker, by_hand, _ = modules
    for case in cases.values():
        assert checker.check(case, by_hand.step) == ["messages", "params", "query", "state.w"]


def test_the_committed_output_of_pytorch_covers_every_case(cases):
    lines = (FOLDER / "dp_mu2_torch.txt").read_text(encoding="utf-8").splitlines()
    agreed = [f"{n} ({case.header['sha256'][:8]}): messages, params, query, state.w agree" for n, case in cases.items()]
    assert lines[:-1] == agreed
    assert re.fullmatch(r"Python 3\.\d+\.\d+, PyTorch \d+\.\d+\.\d+\S*", lines[-1])


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_an_implementation_has_at_most_40_lines_of_code(name):
    lines = (FOLDER / f"dp_mu2_{name}.py").read_text(encoding="utf-8").splitlines()
    assert sum(bool(line.strip()) and not line.strip().startswith('"""') for line in lines) <= 40


def late_noise(case):
    """The first round in which a machine takes part that took part in the round before: its message is wrong."""
    participants = case.arrays["participants"]
    return next(t for t in range(2, 9) if np.intersect1d(participants[t - 1], participants[t - 2]).size), "messages"


def wrong_divisor(case):
    """Round 1: queries and messages do not use the divisor, w_2 does."""
    return 1, "state.w"


def early_projection(case):
    """The first round whose step leaves the ball, with its noise or without."""
    eta, radius = case.header["settings"]["step_size"], case.header["constraint"]["settings"]["radius"]
    arrays, w = case.arrays, case.arrays["start"]
    for t in range(1, 9):
        q, noise = arrays["state.q"][t - 1].ravel(), arrays["server_noise"][t - 1]
        if max(np.linalg.norm(w - eta * q), np.linalg.norm(w - eta * (q + noise))) > radius:
            return t, "state.w"
        w = arrays["state.w"][t - 1].ravel()
    return None


def wrong_weight(case):
    """Round 1: x_0 = x_1, so that the increment is zero."""
    return 1, "messages"


def late_clip(case):
    """Round 1 if the norm of a gradient at zero, or of the sum of all, exceeds C. All classes have probability 1/3."""
    records = case.arrays["records"][0]
    residuals = 1 / 3 - np.eye(3)[case.arrays["labels"][records]]
    rows = residuals[:, :, None] * case.arrays["features"][records][:, None, :]
    norms = np.sqrt(np.sum(rows**2, axis=(1, 2)))
    assert max(norms.max(), np.linalg.norm(rows.sum(axis=0))) > case.header["settings"]["clip"]
    return 1, "messages"


PLACES = {
    "noise taken back one round late": late_noise,
    "divisor M for m": wrong_divisor,
    "projection before noise": early_projection,
    "momentum weight t for t - 1": wrong_weight,
    "clip after the sum": late_clip,
}


@pytest.mark.parametrize("error", PLACES)
def test_an_error_is_located_where_it_is(modules, cases, error):
    checker, _, wrong = modules
    case = cases[wrong.ERRORS[error][2]]
    with pytest.raises(checker.Difference) as found:
        checker.check(case, wrong.wrong_step(error))
    assert (found.value.round, found.value.quantity) == PLACES[error](case)


def test_distances_are_those_of_the_errors(modules, cases):
    checker, _, wrong = modules
    case = cases["partial"]
    with pytest.raises(checker.Difference) as found:
        checker.check(case, wrong.wrong_step("divisor M for m"))
    assert found.value.distance == pytest.approx(1 - 3 / 6, rel=1e-5)  # w_2 = -η·q̃_1 in the interior of the ball
    with pytest.raises(checker.Difference) as found:
        checker.check(case, wrong.wrong_step("momentum weight t for t - 1"))
    messages, noise = case.arrays["messages"][0], case.arrays["message_noise"][0]
    assert found.value.distance == pytest.approx(np.linalg.norm(messages - noise) / np.linalg.norm(messages), rel=1e-5)


@pytest.mark.parametrize(
    ("error", "hiding"),
    [
        ("noise taken back one round late", "partial-no-noise"),
        ("divisor M for m", "full"),
        ("projection before noise", "partial"),
        ("clip after the sum", "no-clip"),
    ],
)
def test_some_cases_hide_an_error(modules, cases, error, hiding):
    checker, _, wrong = modules
    checker.check(cases[hiding], wrong.wrong_step(error))


def test_every_error_is_named_and_has_a_place(modules):
    assert set(modules[2].ERRORS) == set(PLACES)
