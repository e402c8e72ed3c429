"""Metrics of every client: against NumPy, in chunks, in runs, sweeps and files, and their refusals."""

import numpy as np
import pytest
import xarray as xr
from client_data import CLIENTS, client_data

import fedprivjax as fpj
from fedprivjax import Metric, Refusal
from fedprivjax.engine import chunked_sums
from fedprivjax.engine.metrics import non_private
from fedprivjax.report.display import summarised
from fedprivjax.report.plots import all_plots

NAMES = [f"client_test_{of}{end}" for of in ("accuracy", "loss") for end in ("", "_mean", "_median", "_worst_tenth")]
NAMES += ["client_test_accuracy_variance", "client_test_loss_variance"]
METHOD = fpj.FedAvg(local_epochs=1, batch=4, step_size=0.5)


def run(problem, metrics, **options):
    return fpj.simulate(METHOD, problem, fpj.Full(CLIENTS), rounds=3, metrics=metrics, **options)


def by_hand(given, params):
    scores = given.test_features @ params
    losses = np.logaddexp(0, -np.where(given.test_labels == 1, 1, -1) * scores)
    right = (scores > 0) == (given.test_labels == 1)
    return [[values[given.test_machine_of == c].mean() for c in range(CLIENTS)] for values in (right, losses)]


@pytest.mark.parametrize("chunk", [pytest.param(None, marks=pytest.mark.slow), 7])
def test_they_are_means_over_each_clients_own_test_rows(monkeypatch, chunk):
    if chunk is not None:
        monkeypatch.setattr(chunked_sums, "at_once", lambda problem, count, further: min(chunk, count))
    given = client_data(tests=90 if chunk is None else 91)  # another shape is another program
    found = run(fpj.from_dataset(given), NAMES)
    accuracy, loss = map(np.array, by_hand(given, np.asarray(found.params)))
    values = {name: found.metrics[name][-1] for name in NAMES}
    for of, each, worst in (("accuracy", accuracy, np.sort(accuracy)[:2]), ("loss", loss, np.sort(loss)[-2:])):
        name = f"client_test_{of}"
        np.testing.assert_allclose(values[name], each, atol=1e-6)
        for end, value in {
            "mean": each.mean(),
            "median": np.median(each),
            "worst_tenth": worst.mean(),
            "variance": each.var(),
        }.items():
            np.testing.assert_allclose(values[f"{name}_{end}"], value, atol=1e-6, err_msg=f"{name}_{end}")


def test_ten_thousand_clients_need_no_model_each():
    owner = np.arange(10_000, dtype=np.int32)
    x = np.ones((10_000, 2), np.float32)
    given = fpj.datasets.from_arrays(
        x, owner % 2, x, owner % 2, feature_bound=2.0, classes=2, machine_of=owner, test_machine_of=owner
    )
    many = fpj.FedAvg(local_epochs=1, step_size=0.5)
    found = fpj.simulate(
        many, fpj.from_dataset(given), fpj.Uniform(10_000, 5), rounds=1, metrics=["client_test_accuracy"]
    )
    assert found.metrics["client_test_accuracy"].shape == (1, 10_000)
    assert found.metrics["client_test_accuracy"].mean() == 0.5


def test_a_sweep_names_the_axis_and_files_keep_it(tmp_path):
    problem, names = fpj.from_dataset(client_data()), client_data().machine_names
    options = {
        "over": {"step_size": [0.1, 0.5]},
        "seeds": 2,
        "rounds": 3,
        "metrics": NAMES[:2],
        "folder": tmp_path / "a",
    }
    grid = fpj.sweep(METHOD, problem, fpj.Full(CLIENTS), **options)
    values = grid["client_test_accuracy"]
    assert values.dims == ("step_size", "seed", "round", "client")
    assert values["client"].values.tolist() == list(names)
    np.testing.assert_allclose(values.mean("client"), grid["client_test_accuracy_mean"], atol=1e-6)
    grid.to_netcdf(tmp_path / "grid.nc")
    assert xr.open_dataset(tmp_path / "grid.nc")["client"].values.tolist() == list(names)
    again = fpj.sweep(METHOD, problem, fpj.Full(CLIENTS), **options)  # from the chunks on disk
    xr.testing.assert_equal(again["client_test_accuracy"], values)


def test_a_run_is_saved_and_reported_with_vectors(tmp_path):
    seen = []
    names = ["client_test_accuracy", "client_test_accuracy_mean"]
    found = run(fpj.from_dataset(client_data()), names, on_evaluation=lambda rounds, values: seen.append(values))
    found.save(tmp_path)
    read = fpj.load_run(tmp_path).metrics["client_test_accuracy"]
    np.testing.assert_array_equal(read, found.metrics["client_test_accuracy"])
    np.testing.assert_array_equal(seen[-1]["client_test_accuracy"], read[-1])
    assert isinstance(seen[-1]["client_test_accuracy_mean"], float)
    assert found.non_private_metrics == tuple(names)
    assert "client_test_accuracy_mean" in str(found)


def test_no_guarantee_covers_them():
    problem = fpj.from_dataset(client_data())
    start = fpj.ready(METHOD, problem, fpj.Full(CLIENTS), rounds=3, metrics=NAMES)
    assert non_private(problem, start.static.metrics) == tuple(NAMES)
    assert non_private(problem, [Metric("mine", lambda problem, snapshot: 0.0)]) == ("mine (not known)",)


def test_the_page_has_a_histogram_and_tables_refuse_vectors():
    grid = fpj.sweep(METHOD, fpj.from_dataset(client_data()), fpj.Full(CLIENTS), rounds=2, metrics=NAMES[:1], seeds=2)
    figure = all_plots(summarised(grid, None))["client_test_accuracy_of_clients"]
    (axis,) = figure.axes
    corners = axis.patches[0].get_xy()[:, 1]
    assert axis.get_ylabel() == "clients"
    assert corners.max() <= CLIENTS
    assert fpj.plot(grid, "client_test_accuracy").axes[0].get_xlabel() == "client test accuracy %"
    for use in (fpj.table, fpj.frame):
        with pytest.raises(Refusal, match=r"must be a scalar here, got one with the axis 'client'. Use client"):
            use(grid, "client_test_accuracy")
    with pytest.raises(Refusal, match="must be a scalar here"):
        fpj.select(grid.expand_dims(step_size=[0.5]), over="step_size", metric="client_test_accuracy")


@pytest.mark.slow
def test_any_vector_may_name_its_axis():
    parts = Metric("parts", lambda problem, snapshot: snapshot.params[:3], axis="coordinate", default=False)
    metrics = [parts, Metric("square", lambda problem, snapshot: np.ones((2, 2)) * snapshot.params[0])]
    grid = fpj.sweep(METHOD, fpj.from_dataset(client_data()), fpj.Full(CLIENTS), rounds=2, metrics=metrics, seeds=2)
    assert grid["square"].dims == ("seed", "round", "square_0", "square_1")
    assert grid["parts"].dims == ("seed", "round", "coordinate")
    assert grid["coordinate"].values.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (Metric("m", lambda p, s: 1.0, axis="x"), r"must be a vector along 'x', got shape \(\)"),
        (Metric("m", lambda p, s: s.params, axis="round"), "must not have the name 'round'"),
        (Metric("m", lambda p, s: s.params, axis="client"), "must have 12 values along 'client' as others, got 4"),
    ],
)
def test_other_shapes_and_names_are_refused(metric, message):
    with pytest.raises(Refusal, match=message):
        run(fpj.from_dataset(client_data()), ["client_test_loss", metric])


def test_a_swept_axis_is_refused():
    metric = Metric("m", lambda p, s: s.params, axis="clip")
    problem = fpj.from_dataset(client_data())
    with pytest.raises(Refusal, match="axis of metric 'm' must not be swept, got 'clip'"):
        fpj.sweep(METHOD, problem, fpj.Full(CLIENTS), rounds=2, over={"clip": [0.1]}, metrics=[metric])


def test_a_client_without_test_rows_is_refused_by_name():
    given = client_data()
    problem = fpj.from_dataset(given, test_machine_of=np.maximum(given.test_machine_of, 1))
    with pytest.raises(Refusal, match=r"must have test examples of every client, got none of client 'client 0'\. Hold"):
        run(problem, ["client_test_accuracy_mean"])
    with pytest.raises(Refusal, match=r"must have the client of every test example \(test_machine_of\)"):
        run(fpj.from_dataset(client_data(test_machine_of=None)), ["client_test_loss"])
