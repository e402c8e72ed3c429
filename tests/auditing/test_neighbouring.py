from dataclasses import replace

import jax
import numpy as np
import pytest
from audited import FEDERATION, SETTINGS

from fedprivjax import DPMu2, FedAvg, Full, NoisyMinibatchSGD, NoisySGD, Refusal, Uniform, audit
from fedprivjax.auditing.canaries import CanaryLoss, labels_of, with_labels
from fedprivjax.auditing.federation import RADIUS, Federation
from fedprivjax.auditing.neighbouring import small_federation, worlds
from fedprivjax.auditing.of_experiment import protocols_named
from fedprivjax.protocols import PROTOCOLS

CLIP = 0.3
CASES = {
    "single pass": DPMu2(mu=2.0, clip=CLIP),
    "unclipped": DPMu2(mu=2.0, trust="server"),
    "sampled": NoisyMinibatchSGD(epsilon=2.0, clip=CLIP, batch=3, sampler="poisson"),
}


def numbers(start):
    """Return every numeric input of a run, by its path."""
    arguments = start.arguments._replace(key=jax.random.key_data(start.key))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(arguments)}


def pair_of(protocol, canary=0, **changes):
    federation = FEDERATION if not changes else Federation(**(SETTINGS | changes))
    return worlds(protocol, federation, canary, delta=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_worlds_differ_in_the_canarys_label_alone(name):
    pair = pair_of(CASES[name], canary=5)
    one, other = map(numbers, pair.starts)
    assert one.keys() == other.keys()
    different = [place for place in one if not np.array_equal(one[place], other[place])]
    assert [place.endswith(".label") for place in different] == [True]
    labels = [labels_of(start.problem) for start in pair.starts]
    other_length = 1.0 if CASES[name].clip is None else 0.5  # what is clipped anyhow has another length, too
    for signed, label in zip((-1.0, other_length), labels, strict=True):
        np.testing.assert_array_equal(label, signed * (np.arange(label.size) == 5))
    assert pair.start.guarantee.epsilon == pair.starts[1].guarantee.epsilon


@pytest.mark.parametrize("name", CASES)
def test_records_gradients_lie_along_the_canarys_axis_and_attain_the_bound(name):
    protocol = CASES[name]
    problem = pair_of(protocol).start.problem
    features = np.asarray(problem.pool.features)
    length = 1.0 if protocol.clip is None else 100.0 * CLIP
    np.testing.assert_allclose(features[:, 0], length, rtol=1e-6)
    assert not features[:, 1:].any()
    for score in (-2.0, 3.0):
        assert jax.grad(CanaryLoss().value)(score, -1.0) == -1.0
    if protocol.clip is None:
        assert problem.lipschitz == pytest.approx(1.0)


def test_labels_can_be_others():
    problem = pair_of(CASES["sampled"]).start.problem
    labels = np.arange(labels_of(problem).size, dtype=np.float32)
    changed = with_labels(problem, labels)
    np.testing.assert_array_equal(labels_of(changed), labels)
    assert changed.pool.features is problem.pool.features


def test_a_canary_belongs_to_the_machine_that_uses_it():
    for name in ("single pass", "sampled"):
        pair = pair_of(CASES[name], canary=7)
        start, table = pair.start, pair.start.problem.partition_table
        if table is not None:
            assert 7 in np.asarray(table.rows)[pair.machine]
        else:
            used = start.plan.samples.reshape(start.plan.schedule.participants.shape)
            assert start.plan.schedule.participants[used == 7].tolist() == [pair.machine]
    with pytest.raises(Refusal, match=r"^canary must be a record that the schedule uses, got 47$"):
        pair_of(CASES["single pass"], canary=47)


def test_no_run_comes_near_the_sets_edge():
    protocol = DPMu2(mu=0.01, clip=CLIP, step_scale=1e6)
    ready = pair_of(protocol, rounds=12).start.protocol
    longest = float(ready.step_scale * ready.step_size) * (1 + float(ready.noise_std)) * 12**2
    assert longest == pytest.approx(0.01 * RADIUS)
    unhurried = pair_of(DPMu2(mu=2.0, clip=CLIP, step_scale=1e-6)).start.protocol
    assert unhurried.step_scale == 1e-6


def test_a_method_without_a_step_of_its_own_takes_one():
    assert pair_of(NoisySGD(mu=2.0, clip=CLIP, step_size=0.5)).start.protocol.step_size == 0.5
    local = replace(protocols_named("local_sgd", 2.0, 1e-5)["local_sgd"], clip=None)
    assert pair_of(local).start.protocol.step_size == 1.0


@pytest.mark.parametrize("name", PROTOCOLS)
def test_small_federations_suit_every_protocol(name):
    protocol = protocols_named(name, 2.0, 1e-5)[name]
    federation = small_federation(protocol, rounds=5)
    assert federation.rounds == 5
    assert federation.participation in (Uniform(4, 2), Full(4))
    pair = worlds(protocol, federation, 0, delta=1e-5)
    assert pair.start.guarantee.private
    batch = getattr(protocol, "batch", None) or 1
    assert federation.records >= max(12, 4 * batch)


def test_protocols_without_a_small_federation_are_refused():
    with pytest.raises(Refusal, match="batch"):
        small_federation(NoisyMinibatchSGD(epsilon=2.0, clip=CLIP, batch=(3, 4, 5)))


@pytest.mark.parametrize("trust", ["server", "none"])
def test_a_machines_records_are_replaced_together(trust):
    protocol = FedAvg(local_epochs=1, batch=3, step_size=0.1, unit="machine", update_clip=1.0, mu=2.0, trust=trust)
    pair = worlds(protocol, small_federation(protocol), 13, delta=1e-5)
    one, other = (labels_of(start.problem) for start in pair.starts)
    np.testing.assert_array_equal(np.flatnonzero(one != other), np.arange(13, 26))
    np.testing.assert_array_equal(np.flatnonzero(pair.replaced(13)), np.arange(13, 26))


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.usefixtures("small_audits")
def test_a_machine_attains_its_claim(relation):
    settings = {"local_epochs": 1, "batch": 3, "step_size": 0.1, "unit": "machine", "update_clip": 1.0, "mu": 2.0}
    found = audit(FedAvg(relation=relation, **settings), runs=1000)
    assert not found.refuted
    assert found.attained == pytest.approx(found.guarantee.mu, rel=0.05)
