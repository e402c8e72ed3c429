"""Former names of keys and arguments: each is refused with its new name."""

import pickle
import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest

import fedprivjax
from fedprivjax import (
    DPMu2,
    Dropouts,
    Full,
    Refusal,
    Squared,
    Uniform,
    Varying,
    Weighted,
    datasets,
    experiment,
    from_dataset,
    linear_problem,
    simulate,
    sweep,
)
from fedprivjax.checks.suggestions import RENAMED
from fedprivjax.engine.prepare import ready

PROBLEM = linear_problem(np.eye(4), np.zeros(4), Squared(), feature_bound=1.0)

FILE = {
    "title": "small",
    "problem": {"dataset": "digits", "loss": "softmax", "radius": 8.0},
    "participation": {"kind": "uniform", "machines": 4, "per_round": 2, "rounds": 2},
    "protocol": [{"name": "dp_mu2", "clip": 1.0, "mu": 1.0}],
}


@pytest.mark.parametrize(
    ("section", "keys", "message"),
    [
        ("participation", {"kind": "by_share"}, "unknown participation 'by_share': it is now 'by_size'"),
        (
            "participation",
            {"kind": "between", "per_round": None, "least": 1},
            "unknown key in [participation] 'least': it is now 'min_machines'",
        ),
        (
            "participation",
            {"kind": "between", "per_round": None, "min_machines": 1, "most": 2},
            "unknown key in [participation] 'most': it is now 'max_machines'",
        ),
        (
            "protocol",
            [{"name": "dp_mu2", "clip": 1.0, "mu": 1.0, "profile": [1.0] * 4}],
            "[[protocol]] 'dp_mu2': unknown key 'profile': it is now 'relative_privacy'",
        ),
        (None, {"choose": {}}, "unknown key in the experiment 'choose': it is now 'tuning'"),
        (None, {"record": {}}, "unknown key in the experiment 'record': it is now 'evaluation'"),
        *(
            (
                "participation",
                {"kind": kind, key: [1.0] * 4, "most": 2},
                "unknown key in [participation] 'most': it is now 'max_uses'",
            )
            for kind, key in (("weighted", "weights"), ("diurnal", "peaks"))
        ),
        (
            "problem",
            {"partition": {"kind": "iid", "empty": "refuse"}},
            "unknown problem.partition.empty 'refuse': it is now 'error'",
        ),
    ],
)
def test_former_keys_of_files(section, keys, message):
    raw = FILE | (keys if section is None else {section: _merged(FILE[section], keys)})
    with pytest.raises(Refusal) as caught:
        experiment.parse(raw)
    assert str(caught.value) == message


def _merged(section, keys):
    if isinstance(keys, list):
        return keys
    return {key: value for key, value in (section | keys).items() if value is not None}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Dropouts(law=Uniform(4, 2), rate=0.1), "unknown setting of Dropouts 'law': it is now 'scheme'"),
        (lambda: Varying.between(4, least=1, most=2), "unknown setting of between 'least': it is now 'min_machines'"),
        (lambda: Varying.between(4, 1, most=2), "unknown setting of between 'most': it is now 'max_machines'"),
        (lambda: Weighted(2, 1, [1, 1], most=2), "unknown setting of Weighted 'most': it is now 'max_uses'"),
        (lambda: Weighted.diurnal(2, 1, [0, 0], most=2), "unknown setting of diurnal 'most': it is now 'max_uses'"),
        *(
            (
                partial(call, DPMu2(), None, Full(2), **{former: 1}),
                f"unknown setting of {call.__name__} '{former}': it is now '{new}'",
            )
            for call in (simulate, ready)
            for former, new in (("record", "metrics"), ("every", "eval_every"))
        ),
        (lambda: DPMu2(profile=[1.0, 2.0]), "unknown setting of DPMu2 'profile': it is now 'relative_privacy'"),
        (lambda: sweep(DPMu2(), PROBLEM, Full(2), record=[]), "unknown setting of sweep 'record': it is now 'metrics'"),
        (lambda: sweep(DPMu2(), PROBLEM, Full(2), every=2), "unknown setting of sweep 'every': it is now 'eval_every'"),
        (
            lambda: datasets.from_frame(pd.DataFrame({"x": [1.0], "y": [1.0]}), "y", test_share=0.5),
            "unknown option of a table 'test_share': it is now 'test_fraction'",
        ),
        (
            lambda: linear_problem(np.eye(4), np.zeros(4), Squared(), table=np.eye(2)),
            "unknown setting of linear_problem 'table': it is now 'partition_table'",
        ),
        (
            lambda: from_dataset(datasets.load("digits"), table=np.eye(2)),
            "unknown setting of from_dataset 'table': it is now 'partition_table'",
        ),
        (lambda: datasets.partition([0, 1], 2, empty="refuse"), "unknown empty 'refuse': it is now 'error'"),
    ],
)
def test_former_arguments(call, message):
    with pytest.raises(Refusal) as caught:
        call()
    assert str(caught.value) == message


def test_new_names_are_not_former_ones():
    assert not RENAMED.keys() & {new for names in RENAMED.values() for new in names}


def test_a_former_public_name():
    with pytest.raises(AttributeError, match=r"fedprivjax.* ByShare: it is now 'BySize'$"):
        fedprivjax.ByShare  # noqa: B018
    with pytest.raises(AttributeError, match=r"Nothing$"):
        fedprivjax.Nothing  # noqa: B018


def test_a_pickle_that_names_a_module_of_another_version():
    """Python names the module, without a finder of the package."""
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'fedprivjax\.problem\.procedural'$"):
        pickle.loads(b"cfedprivjax.problem.procedural\nProcedural\n.")
    assert not [finder for finder in sys.meta_path if getattr(finder, "__module__", "").startswith("fedprivjax")]
