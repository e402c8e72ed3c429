"""Trees that restart: streams, exposures and variances by explicit matrices, and the authors' accountant."""

import jax
import numpy as np
import pytest
from cases import sparing

from fedprivjax import FedAvg, Full, Refusal, TreeMomentum, datasets, from_dataset, ready
from fedprivjax.experiment.read import load
from fedprivjax.noise.factors import Independent, Tree
from fedprivjax.noise.server_factors import over_rounds
from fedprivjax.plan.schedule import Schedule
from fedprivjax.plan.uses import Uses
from fedprivjax.privacy import gdp

SETTINGS = [(1, 1, 0.0), (24, 6, 0.0), (23, 8, 0.1), (24, 5, 0.0), (17, 1, 0.5), (12, 40, 0.3), (30, 7, 1.0)]


def matrices(rounds, restart, alpha):
    """Return F and B of a tree that restarts, by the dyadic nodes of every tree."""
    factor, noise = np.zeros((2, rounds, rounds))
    for t in range(1, rounds + 1):
        for before in range(0, t, restart):
            end, nodes = before, min(restart, t - before)
            for k in reversed(range(nodes.bit_length())):
                if nodes >> k & 1:
                    start, end = end, end + (1 << k)
                    noise[t - 1, end - 1] = (1 - alpha) ** (t - end)
        for s in range(start + 1, t + 1):  # the last node ends at t
            factor[t - 1, s - 1] = (1 - alpha) ** (t - s)
    return factor, noise


@pytest.mark.parametrize(("rounds", "restart", "alpha"), sparing(SETTINGS, SETTINGS[2:4]))
def test_restarts_are_one_matrix_mechanism(rounds, restart, alpha):
    """B·F is the momentum (or the prefix sums), the stream is B·ξ, and exposures and variances are those of F and B."""
    tree, (factor, noise) = Tree(restart=restart), matrices(rounds, restart, alpha)
    workload = np.tril((1 - alpha) ** np.maximum(np.subtract.outer(np.arange(rounds), np.arange(rounds)), 0))
    np.testing.assert_allclose(noise @ factor, workload, atol=1e-12)
    np.testing.assert_allclose(tree.variances(rounds, alpha), np.sum(noise**2, axis=1), rtol=1e-12)
    rng = np.random.default_rng(rounds)
    used = np.sort(rng.permutation(rounds)[: rounds // 2 + 1]) + 1
    weight = rng.uniform(0.2, 1, used.size)
    entries = np.zeros(rounds)
    entries[used - 1] = weight
    expected = np.sum((factor @ entries) ** 2)
    uses = Uses(used, np.zeros(used.size, int), weight, 1)
    np.testing.assert_allclose(tree.squares(uses, rounds, alpha), expected, rtol=1e-12)
    np.testing.assert_allclose(np.sum(tree.contributions(used, weight, rounds, alpha) ** 2), expected, rtol=1e-12)
    if alpha == 0:
        np.testing.assert_array_equal(tree.matrix(rounds), factor)
    normals = rng.normal(size=(rounds, 2))
    with jax.enable_x64(True):
        stream = jax.lax.scan(lambda path, z: (tree.step(path, z, alpha),) * 2, tree.init(2, rounds), normals)[1]
        np.testing.assert_allclose(stream.last, noise @ normals, atol=1e-12)


AUTHORS = {  # epochs, rounds of an epoch, noise multiplier: ε at δ = 1e-5 of `compute_epsilon_tree(restart=True, …)`
    (1, 10, 1.0): 10.7255,
    (2, 10, 4.0): 3.189,
    (3, 100, 5.0): 4.2791,
    (5, 100, 10.0): 2.6113,
    (10, 15, 8.0): 3.6171,
    (10, 60, 20.0): 1.6337,
    (20, 90, 20.0): 2.6113,
    (4, 1000, 12.0): 2.2961,
    (30, 50, 30.0): 1.9142,
    (50, 300, 40.0): 2.312,
}


@pytest.mark.parametrize(("epochs", "rounds", "noise"), AUTHORS)
def test_epsilon_of_the_authors_accountant(epochs, rounds, noise):
    """A machine in one round of each epoch, with a restart after each epoch, at the authors' conversion from RDP.

    Transcription of privacy.py of google-research/DP-FTRL. It counts ⌈log₂ r⌉ nodes of a tree, one too few if r is a
    power of 2.
    """
    schedule = Schedule(rounds, np.tile(np.arange(rounds, dtype=np.int32), epochs)[:, None])
    mu = Tree(restart=rounds).exposures(schedule).max() / noise
    alpha, delta = np.arange(1, 200, 0.1)[1:], 1e-5
    converted = alpha * mu**2 / 2 - (np.log(delta * (alpha - 1)) - alpha * np.log(1 - 1 / alpha)) / (alpha - 1)
    assert converted.min() == pytest.approx(AUTHORS[epochs, rounds, noise], abs=1e-4)
    assert gdp.epsilon(mu, delta) < converted.min()  # the exact conversion


def test_restarts_have_less_noise_than_one_tree():
    """Variance of prefix sums at equal μ, relative to independent noise; cyclic cohorts of 100 of 1000 machines."""
    schedule = Schedule(10, (np.arange(100, dtype=np.int32) % 10)[:, None])

    def variance(factor):
        return factor.exposures(schedule).max() ** 2 * factor.variances(100, 0.0).mean()

    ratios = [variance(Tree(restart=every)) / variance(Independent()) for every in (None, 16, 1)]
    np.testing.assert_allclose(ratios, [0.6696, 0.4069, 1.0], atol=1e-4)


PROBLEM = from_dataset(datasets.load("digits"), partition_table=np.arange(1400).reshape(10, 140))


def test_a_run_has_the_exposure_of_its_trees():
    """Full cohorts of 12 rounds: trees of 5, 5 and 2 rounds, by F as written out."""
    settings = {"unit": "machine", "update_clip": 1.0, "local_steps": 1, "step_size": 0.1, "noise_std": 0.5}
    for schedule in ({"tree": 5}, Tree(restart=5)):
        run = ready(FedAvg(**settings, noise_schedule=schedule), PROBLEM, Full(10), rounds=12)
        exposure = np.linalg.norm(matrices(12, 5, 0.0)[0].sum(axis=1))
        assert run.guarantee.mu == pytest.approx(2 / 10 / 0.5 * exposure, rel=1e-9)


def test_an_experiment_file_restarts_trees(tmp_path):
    file = tmp_path / "restart.toml"
    file.write_text(
        'title = "restarts"\n[problem]\ndataset = "digits"\n'
        '[participation]\nkind = "full"\nmachines = 4\nrounds = 8\n'
        '[[protocol]]\nname = "fedavg"\nunit = "machine"\nupdate_clip = 1.0\nlocal_steps = 1\nmu = 1.0\n'
        "step_size = 0.1\nnoise_schedule = { tree = 3 }\n"
        '[[protocol]]\nname = "tree_momentum"\nmu = 1.0\nclip = 1.0\nfactor = { tree = 3 }\n'
    )
    one, two = (settings.make({}) for settings in load(file).protocol)
    assert (one.noise_schedule, two.privacy.factor) == (Tree(restart=3), Tree(restart=3))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Tree(restart=0), "restart must be at least 1, got 0"),
        (lambda: Tree(restart=2.5), "restart must be an integer, got 2.5"),
        (lambda: over_rounds({"toeplitz": 3}), "noise_schedule must be a name, or the rounds of a tree such as"),
        (lambda: TreeMomentum(mu=1.0, factor={"tree": 3, "x": 1}), "factor must be a name, or the rounds of a tree"),
        (lambda: TreeMomentum(mu=1.0, factor={"tree": 3}, noise_rule="paper"), "with the paper's noise, got Tree"),
    ],
)
def test_invalid_restarts(build, message):
    with pytest.raises(Refusal, match=message):
        build()
