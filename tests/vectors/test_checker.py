"""The NumPy checker: right outputs pass, a wrong one is located, bad input is one line."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from fedprivjax.checks.refusal import Refusal
from fedprivjax.vectors import read_arrays

FOLDER = Path(__file__).parents[2] / "experiments/vectors"
CHECKER = runpy.run_path(str(FOLDER / "check_vectors.py"))
load, check, compared = CHECKER["load"], CHECKER["check"], CHECKER["compared"]
VectorError, Difference = CHECKER["VectorError"], CHECKER["Difference"]


@pytest.fixture(scope="module")
def cases():
    return load(FOLDER / "dp_mu2.npz")


def replayed(case, **changes):
    """Step that returns what is recorded, with changed arrays by (quantity, round)."""

    def step(inputs, state):
        t = inputs["round"]
        outputs = {name: case.arrays[name][t - 1].copy() for name in compared(case)}
        for name, (number, change) in changes.items():
            if t == number:
                outputs[name] = change(outputs[name])
        return outputs, state

    return step


def test_the_checker_imports_numpy_alone():
    text = (FOLDER / "check_vectors.py").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    assert lines == [
        "import json",
        "import zlib",
        "from hashlib import sha256",
        "from types import SimpleNamespace",
        "from zipfile import BadZipFile",
        "import numpy as np",
    ]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.npz")), ids=lambda path: path.stem)
def test_recorded_outputs_pass_in_every_case(path):
    for case in load(path).values():
        needed = {"query", "messages", "params"} - set(case.header["given"])
        assert needed <= set(check(case, replayed(case)))


def test_the_first_difference_is_located(cases):
    case = cases["partial"]

    def of_slot(rows):
        rows[1] *= 1.5
        return rows

    step = replayed(case, params=(3, lambda x: x + 0.1), messages=(3, of_slot), query=(4, lambda x: 2 * x))
    with pytest.raises(Difference, match=r"round 3: messages differs by \d\.\d+ of its norm \(slot 1\)") as found:
        check(case, step)
    assert (found.value.round, found.value.quantity, found.value.slot) == (3, "messages", 1)
    with pytest.raises(Difference, match="round 3: params") as found:
        check(case, replayed(case, params=(3, lambda x: x * 1.001)))
    assert 0.0009 < found.value.distance < 0.0011
    check(case, replayed(case, params=(3, lambda x: x * 1.00005)))


def test_empty_slots_are_not_compared(cases):
    case = cases["dropouts"]
    empty = case.arrays["participants"] < 0
    t, slot = np.argwhere(empty)[0]

    def filled(rows):
        rows[slot] = 7
        return rows

    check(case, replayed(case, messages=(t + 1, filled)))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"weights": 1}, "outputs must be among .*, got 'weights'"),
        ({"params": np.zeros(4)}, r"round 1: params must have shape \(15,\), got \(4,\)"),
        ({"params": np.full(15, np.nan)}, "round 1: params must be finite, got nan"),
        ({}, "outputs must have at least one quantity"),
    ],
)
def test_bad_outputs_are_one_line(cases, outputs, message):
    with pytest.raises(VectorError, match=message):
        check(cases["partial"], lambda inputs, state: (outputs, state))


def test_bad_files_are_one_line(tmp_path):
    path = tmp_path / "other.npz"
    with pytest.raises(VectorError, match="must be a file, got none of this name"):
        load(path)
    np.savez(path, header=np.array(json.dumps({"format": 2, "cases": {}})))
    with pytest.raises(VectorError, match="must have format 1, got format 2"):
        load(path)
    path.write_bytes((FOLDER / "dp_mu2.npz").read_bytes()[:1000])
    with pytest.raises(VectorError, match="must hold reference vectors, got BadZipFile"):
        load(path)
    with np.load(FOLDER / "dp_mu2.npz") as file:
        arrays = {name: file[name] for name in file.files}
    arrays["partial/params"] = arrays["partial/params"] + 1
    np.savez(path, **arrays)
    with pytest.raises(VectorError, match="got others in case 'partial'"):
        load(path)


@pytest.mark.parametrize(("read", "error"), [(load, VectorError), (read_arrays, Refusal)])
def test_a_changed_byte_is_one_line_or_not_read(tmp_path, read, error):
    path, errors = tmp_path / "damaged.npz", []
    whole = (FOLDER / "released_local_sgd.npz").read_bytes()
    for place in range(100, len(whole), len(whole) // 60):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        try:
            read(path)
        except error as found:
            errors.append(str(found))
    assert len(errors) > 40
    assert all("must hold reference vectors" in text or "must have the arrays of its header" in text for text in errors)


@pytest.mark.parametrize("returned", [None, {"params": 0.0}, (0.0, None), ({}, None, None)])
def test_a_step_that_returns_something_else_is_refused_in_one_line(returned):
    case = next(iter(load(FOLDER / "dp_mu2.npz").values()))
    with pytest.raises(VectorError, match=r"^step must return \(outputs, state\) with a dict of outputs, got"):
        check(case, lambda inputs, state: returned)
