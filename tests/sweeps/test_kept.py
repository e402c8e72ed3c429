"""Kept parameters: those of single runs, through chunks, stopped sweeps, parts, meshes and files."""

import jax
import numpy as np
import pytest
from flax.core import FrozenDict

import fedprivjax as fpj
from fedprivjax import Refusal
from fedprivjax.problem.networks import MLP
from fedprivjax.sweeps import schema
from fedprivjax.sweeps.chunk_store import sweep_fingerprint
from fedprivjax.sweeps.memory import run_bytes
from fedprivjax.sweeps.prepare import ready_sweep

SCHEME = fpj.Uniform(6, 3)
METHOD = fpj.DPMu2(clip=1.0)
OPTIONS = {"over": {"mu": [1.0, 4.0]}, "seeds": 2, "rounds": 4, "eval_every": 2}
KEEP = {**OPTIONS, "keep": ["params"]}
DATA = fpj.datasets.from_arrays(np.eye(12), np.arange(12) % 3, feature_bound=1.0, classes=3, bias=True)


@pytest.fixture(scope="module")
def grid(softmax_problem):
    return fpj.sweep(METHOD, softmax_problem, SCHEME, **KEEP)


def same(one, other, **tolerance):
    assert set(one) == set(other)
    for name in set(one) - {"seconds"}:
        values = one[name].values, other[name].values
        if tolerance and values[0].dtype.kind == "f":
            np.testing.assert_allclose(*values, **tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(*values, err_msg=name)


def test_kept_parameters_are_those_of_the_single_run(grid, softmax_problem):
    assert grid["params"].dims == ("mu", "seed", "parameter")
    assert grid["params"].dtype == np.float32
    for mu in OPTIONS["over"]["mu"]:
        for seed in range(2):
            found = fpj.run_of(grid.sel(mu=mu, seed=seed))
            single = fpj.simulate(METHOD.replace(mu=mu), softmax_problem, SCHEME, seed=seed, rounds=4, eval_every=2)
            np.testing.assert_allclose(found.params, single.params, rtol=1e-5, atol=1e-6)
            assert found.params.shape == single.params.shape
            assert found.rounds.tolist() == single.rounds.tolist()
            assert {name: set(each) for name, each in found.iterates.items()} == {
                name: set(each) for name, each in single.iterates.items()
            }
            for name, values in single.metrics.items():
                np.testing.assert_allclose(found.metrics[name], values, rtol=1e-5, atol=1e-6)
            assert found.costs.keys() == single.costs.keys()
            assert found.guarantee.mu == pytest.approx(single.guarantee.mu)
            assert found.non_private_metrics == single.non_private_metrics
    assert np.unique(grid["params"].values.round(5)).size > 2 * grid["params"].sizes["parameter"]


def test_the_parameters_of_one_run_are_equal_bit_for_bit(softmax_problem):
    method, run = METHOD.replace(mu=1.0), {"rounds": 4, "eval_every": 2}
    found = fpj.run_of(fpj.sweep(method, softmax_problem, SCHEME, seeds=[5], keep=["params"], **run))
    single = fpj.simulate(method, softmax_problem, SCHEME, seed=5, **run)
    np.testing.assert_array_equal(found.params, single.params)
    assert (found.method, str(found.guarantee)) == (single.method, str(single.guarantee))


@pytest.mark.slow
def test_without_keep_nothing_changes(grid, softmax_problem):
    data = fpj.sweep(METHOD, softmax_problem, SCHEME, **OPTIONS)
    assert set(grid) - set(data) == {"params", "method", "predictor"}
    same(data, grid[list(data)])


def test_keep_is_part_of_the_fingerprint(softmax_problem):
    plain, empty, keep = (
        sweep_fingerprint(ready_sweep(METHOD, softmax_problem, SCHEME, **OPTIONS, **more))
        for more in ({}, {"keep": []}, {"keep": ["params"]})
    )
    assert plain == empty != keep


def test_kept_parameters_count_in_the_memory(softmax_problem):
    start = ready_sweep(METHOD, softmax_problem, SCHEME, **OPTIONS).first
    (draw, one), (same_draw, more) = run_bytes(start), run_bytes(start, keep=True)
    assert (draw, more - one) == (same_draw, 2 * 4 * softmax_problem.dimension)


def test_the_size_is_stated_before_anything_is_compiled(softmax_problem, capsys, monkeypatch):
    monkeypatch.setattr("fedprivjax.sweeps.sweep.execute", lambda *_: pytest.fail("nothing may run"))
    with pytest.raises(pytest.fail.Exception):
        fpj.sweep(METHOD, softmax_problem, SCHEME, **KEEP)
    assert capsys.readouterr().err == "parameters of 4 runs take 240 B\n"
    monkeypatch.setattr(schema, "memory", lambda: 239.0)
    with pytest.raises(Refusal, match=r"^parameters that are kept must fit .* 4 runs, .*\. Leave out keep, or sweep"):
        fpj.sweep(METHOD, softmax_problem, SCHEME, **KEEP)


@pytest.mark.slow
def test_chunks_and_a_stopped_sweep_keep_the_same_parameters(grid, softmax_problem, tmp_path):
    budget = sum(run_bytes(ready_sweep(METHOD, softmax_problem, SCHEME, **KEEP).first, keep=True))

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    more = {**KEEP, "memory_budget": budget, "folder": tmp_path, "mesh": {"runs": 1}}
    with pytest.raises(KeyboardInterrupt):
        fpj.sweep(METHOD, softmax_problem, SCHEME, progress=stop, **more)
    stored = [np.load(file)["params"].shape for file in tmp_path.glob("*.npz")]
    assert stored == [(1, 1, 15)] * len(stored)
    assert 2 <= len(stored) < 4
    found = fpj.sweep(METHOD, softmax_problem, SCHEME, **more)
    np.testing.assert_allclose(found["params"], grid["params"], rtol=1e-5, atol=1e-6)
    whole = fpj.sweep(METHOD, softmax_problem, SCHEME, **{**more, "folder": None})
    same(found, whole)


@pytest.mark.slow
def test_parts_and_meshes_keep_the_same_parameters(grid, softmax_problem, tmp_path):
    for number in (1, 2):
        part = fpj.sweep(METHOD, softmax_problem, SCHEME, folder=tmp_path, part=(number, 2), **KEEP)
    np.testing.assert_allclose(part["params"], grid["params"], rtol=1e-5, atol=1e-6)
    one, two = (fpj.sweep(METHOD, softmax_problem, SCHEME, mesh={"runs": count}, **KEEP) for count in (1, 2))
    same(one, two, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_machines_over_devices_keep_the_same_parameters(grid, softmax_problem):
    found = fpj.sweep(METHOD, softmax_problem, SCHEME, mesh={"runs": 2, "machines": 2}, **KEEP)
    np.testing.assert_allclose(found["params"], grid["params"], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_networks_parameters_keep_their_tree(tmp_path):
    problem = fpj.from_dataset(DATA, network=MLP((2,)))
    method, run = fpj.DPMu2(noise_std=0.1, clip=1.0, step_size=0.1), {"rounds": 2}
    grid = fpj.sweep(method, problem, fpj.Full(3), seeds=2, keep=["params"], **run)
    single = fpj.simulate(method, problem, fpj.Full(3), seed=1, **run)
    found = fpj.run_of(grid.isel(seed=1), problem)
    assert jax.tree.structure(found.params) == jax.tree.structure(single.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found.params, single.params)
    np.testing.assert_array_equal(found.predict(DATA.features), single.predict(DATA.features))
    with pytest.raises(Refusal, match="predictor must be"):
        fpj.run_of(grid.isel(seed=1)).predict(DATA.features)
    with pytest.raises(Refusal, match="params must have"):
        fpj.run_of(grid.isel(seed=1), fpj.from_dataset(DATA))
    found.save(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, fpj.load_run(tmp_path, problem).params, found.params)


@pytest.mark.slow
def test_runs_of_other_lengths_have_their_own_evaluations():
    problem = fpj.from_dataset(DATA, constraint=fpj.Ball(5.0))
    over = {"rounds": [2, 3]}
    grid = fpj.sweep(
        fpj.DPMu2(mu=1.0, clip=1.0), problem, fpj.Full(3), over=over, seeds=1, eval_every=2, keep=["params"]
    )
    assert fpj.run_of(grid.sel(rounds=2)).rounds.tolist() == [2]
    run = fpj.run_of(grid.sel(rounds=3))
    assert run.rounds.tolist() == [2, 3]
    assert run.predict(DATA.features).shape == (12,)
    assert run.coefficients.dims == ("class", "feature")


def test_a_vector_has_the_tree_of_its_parameters():
    start = {"w": np.ones((2, 2), np.float32), "b": [np.zeros(3, np.float32), (np.ones((), np.float32),)]}
    problem = fpj.general_problem(lambda params, z: (params["w"] @ z).sum(), np.ones((4, 2)), start)
    params = jax.tree.map(lambda leaf: leaf + np.arange(leaf.size, dtype=np.float32).reshape(leaf.shape), problem.start)
    vector = np.asarray(schema.flat(params, problem))
    assert vector.shape == (8,)
    found = schema.unflattened(vector, schema.structure_of(problem))
    assert jax.tree.structure(found) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, found, params)


def test_other_containers_are_refused():
    start = FrozenDict({"w": np.zeros(2, np.float32)})
    problem = fpj.general_problem(lambda params, z: (params["w"] * z).sum(), np.ones((4, 2)), start)
    with pytest.raises(Refusal, match=r"^params must be an array, .* got FrozenDict\. Leave out keep$"):
        ready_sweep(fpj.DPMu2(noise_std=1.0, step_size=0.1), problem, fpj.Full(2), rounds=1, keep=["params"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda grid: grid.drop_vars("params"), r'^dataset must have params, got none\. Keep them: keep=\["params"\]'),
        (lambda grid: grid.sel(mu=1.0), r"^dataset must have a single value along seed, got \{'seed': 2\}\. Fix it"),
        (lambda grid: grid.isel(mu=0, seed=0, parameter=0), "^dataset must have all 15 parameters, got one"),
        (lambda grid: grid.isel(mu=0, seed=0, round=-1), "^dataset must have every round, got 4 alone"),
        (
            lambda grid: grid.isel(mu=0, seed=0, parameter=slice(2)),
            r"^dataset must have all 15 parameters, got 2\. Leave out",
        ),
        (
            lambda grid: grid.isel(mu=0).max("seed", keep_attrs=True),
            "^dataset must have the seed of a single run, got none",
        ),
        (
            lambda grid: grid.isel(mu=0, seed=0).drop_vars("guarantee"),
            "^dataset must have the guarantee of a single run, got none",
        ),
    ],
)
def test_datasets_that_are_no_run_are_refused(grid, change, message):
    with pytest.raises(Refusal, match=message):
        fpj.run_of(change(grid))


def test_a_run_that_was_chosen_by_results_says_so(grid):
    chosen = fpj.select(grid, over="mu", metric="test_loss").isel(seed=0)
    said = "hyper-parameters and data preparation are not covered"
    assert said in [str(one) for one in fpj.run_of(chosen).guarantee.assumptions]
    assert said not in [str(one) for one in fpj.run_of(grid.isel(mu=0, seed=0)).guarantee.assumptions]


@pytest.mark.parametrize("keep", ["params", ["metrics"], 3, [["params"]]])
def test_other_parts_are_refused(keep, softmax_problem):
    with pytest.raises(Refusal, match=r'^keep must be a list of "params", got '):
        ready_sweep(METHOD, softmax_problem, SCHEME, keep=keep)


def test_a_custom_metric_may_not_have_the_name_of_the_parameters(softmax_problem):
    metric = fpj.Metric("params", lambda problem, snapshot: 0.0)
    with pytest.raises(Refusal, match="params"):
        ready_sweep(METHOD, softmax_problem, SCHEME, metrics=[metric], **KEEP)


def test_evaluations_are_reported_without_the_parameters(grid, softmax_problem):
    seen = []
    fpj.sweep(METHOD, softmax_problem, SCHEME, on_evaluation=lambda *each: seen.append(each), **KEEP)
    assert len(seen) == 8  # runs that fill a chunk are not reported
    assert {frozenset(metrics) for _, _, metrics in seen} == {frozenset(fpj.run_of(grid.isel(mu=0, seed=0)).metrics)}
