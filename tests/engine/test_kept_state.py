"""What machines keep: returned, saved, continued, divided over devices, evaluated and predicted with."""

import jax
import numpy as np
import pytest
from client_data import CLIENTS, client_data
from flax import struct

import fedprivjax as fpj
from fedprivjax import Refusal
from fedprivjax.method.local_algorithm import add
from fedprivjax.protocols.fedavg import LocalGradientSteps

NAMES = ["personal_accuracy", "personal_accuracy_worst_tenth", "personal_loss", "client_test_accuracy"]
METHOD = fpj.Scaffold(local_epochs=1, batch=4, step_size=0.5)


@struct.dataclass(kw_only=True)
class Remembering(LocalGradientSteps):
    """Every machine holds its last message, and its model is the reported one moved by it."""

    def own(self, public):
        return {"moved": jax.tree.map(lambda leaf: 0 * leaf, public.start)}

    def keep(self, own, message, work):
        return {"moved": message}

    def personal(self, point, own):
        return add(point, own["moved"])


REMEMBERING = fpj.Protocol(
    Remembering(), privacy=fpj.LocalPrivacy(work=fpj.LocalEpochs(1, 4)), step_size=0.5, noise_std=0.0
)


@pytest.fixture(scope="module")
def data():
    return client_data()


@pytest.fixture(scope="module")
def problem(data):
    return fpj.from_dataset(data)


def run(problem, method=METHOD, **options):
    settings = {"rounds": 5, "metrics": NAMES, "seed": 1, "eval_every": 2} | options
    return fpj.simulate(method, problem, fpj.Uniform(CLIENTS, 5), **settings)


@pytest.fixture(scope="module")
def scaffold(problem):
    return run(problem)


@pytest.fixture(scope="module")
def remembering(problem):
    return run(problem, REMEMBERING)


@pytest.fixture(scope="module")
def without(problem):
    return run(problem, keep_own=False)


def test_own_models_are_evaluated_on_their_clients_rows_and_predict(data, problem, remembering):
    found = remembering
    moved = np.asarray(found.own["moved"])
    assert moved.shape == (CLIENTS, problem.dimension)
    expected = []
    for client in range(CLIENTS):
        rows = data.test_machine_of == client
        right = (data.test_features[rows] @ (np.asarray(found.params) + moved[client]) > 0) == data.test_labels[rows]
        expected.append(right.mean())
        predicted = found.predict(data.test_features[rows], client=data.machine_names[client])
        np.testing.assert_array_equal(predicted, found.predict(data.test_features[rows], client=client))
        assert (predicted == data.test_labels[rows]).mean() == pytest.approx(right.mean())
    np.testing.assert_allclose(found.metrics["personal_accuracy"][-1], expected, atol=1e-6)
    assert found.metrics["personal_accuracy_worst_tenth"][-1] == pytest.approx(np.sort(expected)[:2].mean())
    assert not np.allclose(found.metrics["client_test_accuracy"][-1], expected)
    assert set(found.non_private_metrics) >= set(NAMES)


def test_a_method_without_personal_models_has_the_reported_one(problem, scaffold):
    found = scaffold
    np.testing.assert_array_equal(found.metrics["personal_accuracy"], found.metrics["client_test_accuracy"])
    np.testing.assert_array_equal(found.model_of("client 3"), found.params)
    plain = run(problem, fpj.FedAvg(local_epochs=1, batch=4, step_size=0.5), metrics=NAMES[::3])
    assert plain.own is None
    np.testing.assert_array_equal(plain.metrics["personal_accuracy"], plain.metrics["client_test_accuracy"])


def test_asking_for_them_changes_no_number(scaffold, without):
    np.testing.assert_array_equal(scaffold.params, without.params)
    assert without.own is None
    assert scaffold.own.nbytes == scaffold.costs["client_state_bytes"]
    assert "own: states of machines, each for its machine alone" in str(scaffold)
    assert "own:" not in str(without)


@pytest.mark.slow
def test_segments_and_checkpoints_return_the_same(problem, tmp_path):
    whole = run(problem)
    np.testing.assert_allclose(run(problem, on_evaluation=lambda *at: None).own, whole.own, atol=1e-6)
    assert run(problem, folder=tmp_path, keep_own=False).own is None
    first = run(problem, folder=tmp_path)  # goes on, because the file has no states
    np.testing.assert_allclose(first.own, whole.own, atol=1e-6)
    np.testing.assert_array_equal(run(problem, folder=tmp_path).own, first.own)  # is read


@pytest.mark.parametrize(("kept", "saved"), [("scaffold", True), ("remembering", False)])
def test_a_saved_run_keeps_them_in_a_file_of_its_own(request, without, data, tmp_path, kept, saved):
    found = request.getfixturevalue(kept)
    found.save(tmp_path)
    read = fpj.load_run(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, read.own, found.own)
    if saved:
        np.testing.assert_array_equal(read.model_of("client 2"), found.model_of(2))
    else:
        with pytest.raises(Refusal, match="for a saved run, which has no function"):
            read.predict(data.test_features, client=2)
    (tmp_path / "own.npz").unlink()  # as before publishing the folder
    assert fpj.load_run(tmp_path).own is None
    found.save(tmp_path)
    without.save(tmp_path)
    assert not (tmp_path / "own.npz").exists()


@pytest.mark.slow
def test_a_mesh_returns_every_machine_once(problem):
    found = run(problem, mesh={"machines": min(3, jax.device_count())})
    np.testing.assert_allclose(found.own, run(problem).own, atol=1e-6)


@pytest.mark.parametrize("client", ["client 99", 99, -1, True, 1.0])
def test_unknown_clients_are_refused(problem, data, client):
    with pytest.raises(Refusal, match="client"):
        run(problem).predict(data.test_features, client=client)


def test_a_run_without_states_has_no_models_of_clients(problem, data):
    with pytest.raises(Refusal, match="client must go with a run whose machines keep a state, got one without"):
        run(problem, keep_own=False).predict(data.test_features, client=0)
