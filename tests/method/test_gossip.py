"""Gossip: NumPy transcriptions, recursions on quadratics, guarantees, metrics, divided machines, and refusals."""

import tomllib
from typing import Any

import jax
import networkx
import numpy as np
import optax
import pytest
from cases import sparing
from oracles import gossip
from oracles.decor import adjacency
from small_file import FEDERATION

import fedprivjax as fpj
from fedprivjax.experiment.read import parse
from fedprivjax.noise.mixing import as_mixing
from fedprivjax.plan.seeds import round_keys
from fedprivjax.privacy.adversaries import Local
from fedprivjax.protocols.noisy_sgd import SGD
from fedprivjax.sweeps.execute import run_chunk

N, BATCH, CLASSES, FEATURES, ROUNDS = 9, 3, 3, 4, 50
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N * 60, FEATURES)).astype(np.float32)
Y = RNG.integers(0, CLASSES, N * 60)
OWN = np.arange(N * 50).reshape(N, 50)
RADIUS, CLIP, ETA = 1.0, 0.8, 0.2
PROBLEM = fpj.linear_problem(
    X[:-90],
    Y[:-90],
    fpj.Softmax(CLASSES),
    constraint=fpj.Ball(RADIUS),
    partition_table=OWN,
    test=(X[-90:], Y[-90:]),
)
SETTINGS: dict[str, Any] = {"clip": CLIP, "step_size": ETA, "noise_std": 0.3}
CYCLE = np.roll(np.eye(N), 1, axis=1)
DIRECTED = 0.6 * np.eye(N) + 0.4 * CYCLE  # doubly stochastic and not symmetric
MIXINGS = {
    "ring": ("ring", [gossip.metropolis(adjacency("ring", N))]),
    "torus": (fpj.Torus(3, 3), [gossip.metropolis(adjacency("torus", N))]),
    "directed": (DIRECTED, [DIRECTED]),
    "in turn": (["ring", DIRECTED, fpj.Torus(3, 3)], None),
    "matchings": (fpj.Matchings(20, seed=3), None),
}
MIXINGS["in turn"] = (MIXINGS["in turn"][0], [*MIXINGS["ring"][1], DIRECTED, *MIXINGS["torus"][1]])
MIXINGS["matchings"] = (MIXINGS["matchings"][0], fpj.Mixing(fpj.Matchings(20, seed=3)).weights(N))
SHARED = fpj.Pairwise("ring", shared=2.0)


def noise_of(start):
    """Return the noise of every message of a prepared run, float64 [rounds, machines, d]."""
    mechanism, inputs = start.mechanism, start.mechanism.inputs

    def one(inputs, key):
        return mechanism.message_noise((), inputs, key, start.problem.dimension)[1]

    keys = round_keys(start.key, np.arange(1, start.plan.size.rounds + 1))
    return start.protocol.noise_std * np.asarray(jax.vmap(one)(inputs, keys), float)


def transcribed(start, weights):
    used = np.asarray(start.plan.samples).reshape(start.plan.size.rounds, N, -1)
    settings = {"shape": (CLASSES, FEATURES), "eta": ETA, "clip": CLIP, "radius": RADIUS}
    return gossip.run(np.asarray(X, float), Y, used, noise_of(start), weights, **settings)


@pytest.mark.parametrize(
    ("name", "noise"),
    sparing(
        [(name, noise) for name in MIXINGS for noise in ("independent", SHARED)],
        quick=[("in turn", SHARED)],  # a ring, a directed matrix and a torus
    ),
)
def test_runs_are_those_of_numpy(name, noise):
    mixing, weights = MIXINGS[name]
    method = fpj.DSGD(**SETTINGS, mixing=mixing, noise_schedule=noise, batch=BATCH)
    names = ["consensus_distance", "models_loss", "worst_model_loss", "models_accuracy", "worst_model_accuracy"]
    options: dict[str, Any] = {"rounds": ROUNDS, "seed": 5, "metrics": names, "eval_every": 1}
    start, run = (
        fpj.ready(method, PROBLEM, fpj.Full(N), **options),
        fpj.simulate(method, PROBLEM, fpj.Full(N), **options),
    )
    models = transcribed(start, weights)
    np.testing.assert_allclose(np.asarray(run.params), models[-1].mean(axis=0), atol=1e-6)
    rows = models.reshape(ROUNDS, N, -1)
    apart = np.sqrt(np.mean(np.sum((rows - rows.mean(axis=1, keepdims=True)) ** 2, axis=2), axis=1))
    np.testing.assert_allclose(run.metrics["consensus_distance"], apart, atol=2e-6)
    scores = models[-1] @ X[-90:].T.astype(float)  # [machines, classes, tests]
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[:, Y[-90:], np.arange(90)]
    right = (scores.argmax(axis=1) == Y[-90:]).mean(axis=1)
    found = [run.metrics[one][-1] for one in names[1:]]
    wanted = [losses.mean(), losses.mean(axis=1).max(), right.mean(), right.min()]
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.slow
def test_messages_of_fresh_records_are_those_of_numpy():
    privacy = fpj.NoisyMessages(clip=CLIP, noise=SHARED)
    method = fpj.Protocol(fpj.Gossip(mixing="ring"), privacy=privacy, noise_std=0.3, step_size=ETA)
    start = fpj.ready(method, PROBLEM, fpj.Full(N), rounds=ROUNDS, seed=2)
    models = transcribed(start, MIXINGS["ring"][1])
    found = fpj.transcript(method, PROBLEM, fpj.Full(N), rounds=ROUNDS, seed=2)
    np.testing.assert_allclose(found.params, models[-1].mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(found.broadcast[0], models, atol=1e-6)
    np.testing.assert_allclose(found.queries[1:], models[:-1, 0].reshape(ROUNDS - 1, -1), atol=1e-6)
    used, x = np.asarray(start.plan.samples)[-1].ravel(), models[-2]
    clean = [
        gossip.clipped(gossip.softmax_gradient(x[i], X[used[i]].astype(float), Y[used[i]]), CLIP) for i in range(N)
    ]
    sent = np.reshape(clean, (N, -1)) + noise_of(start)[-1]
    np.testing.assert_allclose(found.messages[-1], sent, atol=1e-5)


@pytest.mark.slow
def test_a_personal_model_is_that_of_the_machine():
    """Machine i's own model, on the test examples of client i."""
    owner = np.arange(90) % N
    tested = fpj.linear_problem(
        X[:450],
        Y[:450],
        fpj.Softmax(CLASSES),
        constraint=fpj.Ball(RADIUS),
        partition_table=OWN,
        test=(X[-90:], Y[-90:]),
        test_machine_of=owner,
    )
    method = fpj.DSGD(**SETTINGS, mixing="ring", batch=BATCH)
    options: dict[str, Any] = {"rounds": ROUNDS, "seed": 5, "metrics": ["personal_accuracy"]}
    found = fpj.simulate(method, tested, fpj.Full(N), **options).metrics["personal_accuracy"][-1]
    models = transcribed(fpj.ready(method, tested, fpj.Full(N), **options), MIXINGS["ring"][1])[-1]
    right = (models @ X[-90:].T.astype(float)).argmax(axis=1) == Y[-90:]
    np.testing.assert_allclose(found, [right[i, owner == i].mean() for i in range(N)], atol=1e-6)


@pytest.mark.slow
def test_all_floats_of_a_state_are_mixed():
    """A mean of the iterates, and the moments of an optimiser, whose count is an integer."""
    mixed = as_mixing("ring").weights(N)[0]
    method = fpj.Protocol(fpj.Gossip(SGD(average=True), "ring"), privacy=fpj.NoisyRecords(clip=1e3, sampler="full"))
    method = method.replace(noise_std=0.0, step_size=ETA)
    run = fpj.simulate(method, PROBLEM.replace(constraint=fpj.WholeSpace()), fpj.Full(N), rounds=3)
    x = average = np.zeros((N, CLASSES * FEATURES))
    rows = np.asarray(PROBLEM.partition_table.rows)
    for t in range(3):
        w = x.reshape(N, CLASSES, FEATURES)
        each = [np.mean([gossip.softmax_gradient(w[i], X[k], Y[k]) for k in rows[i]], axis=0) for i in range(N)]
        average = mixed @ (average + (x - average) / (t + 1))
        x = mixed @ (x - ETA * np.reshape(each, (N, -1)))
    np.testing.assert_allclose(np.ravel(run.params), average.mean(axis=0), atol=1e-6)
    adam = fpj.DSGD(**SETTINGS, batch=BATCH, server=fpj.ServerOptimizer("adam"))
    assert fpj.ready(adam, PROBLEM, fpj.Full(N), rounds=2).costs["sent_bits"] == 2 * 32 * 3 * PROBLEM.dimension


@pytest.mark.parametrize("noise", sparing(["independent", SHARED], quick=[]))
def test_gossip_on_a_complete_graph_is_a_server(noise):
    settings = {**SETTINGS, "noise_std": None, "epsilon": 4.0, "sampler": "full"}
    method = fpj.DSGD(**settings, mixing="complete", noise_schedule=noise)
    privacy = fpj.NoisyRecords(clip=CLIP, sampler="full", noise=noise)
    server = fpj.Protocol(SGD(), privacy=privacy, epsilon=4.0, step_size=ETA)
    options: dict[str, Any] = {"rounds": 20, "noise_method": "materialised"}
    found, wanted = (fpj.simulate(one, PROBLEM, fpj.Full(N), **options) for one in (method, server))
    np.testing.assert_allclose(found.params, wanted.params, atol=1e-6)
    assert found.guarantee.epsilon == wanted.guarantee.epsilon
    assert found.protocol.noise_std == wanted.protocol.noise_std
    assert "functions of the messages" in found.guarantee.theorem


@pytest.mark.parametrize("name", ["ring", "matchings"])
def test_the_guarantee_does_not_depend_on_the_mixing(name):
    for adversary in (None, Local(), fpj.Coalition(2, Local())):
        settings = {**SETTINGS, "batch": BATCH, "sampler": "poisson", "adversary": adversary}
        method = fpj.DSGD(**settings, mixing=MIXINGS[name][0])
        server = fpj.NoisyMinibatchSGD(**settings)
        found, wanted = (fpj.ready(one, PROBLEM, fpj.Full(N), rounds=10).guarantee for one in (method, server))
        assert found.epsilon == wanted.epsilon
        assert found.trust == wanted.trust == "none"


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["independent", fpj.Pairwise(fpj.Torus(3, 3), 3.0)], ids=["independent", "pairwise"])
def test_quadratics_follow_the_recursions_of_mean_and_covariance(noise):
    """Mean error and consensus of X ← W·(X − η·(X − A + Z)) over 300 seeds, one sweep."""
    rounds, eta, std, d = 12, 0.2, 0.5, 4
    points, torus = np.random.default_rng(2).normal(size=(N, d)).astype(np.float32), adjacency("torus", N)
    problem = fpj.general_problem(_quadratic, points, np.zeros(d, np.float32), partition_table=np.arange(N)[:, None])
    mixing = [fpj.Torus(3, 3), "ring"]
    method = fpj.DSGD(clip=1e3, noise_std=std, step_size=eta, sampler="full", mixing=mixing, noise_schedule=noise)
    options: dict[str, Any] = {"rounds": rounds, "seeds": 300, "keep": ["params"], "metrics": ["consensus_distance"]}
    found = fpj.sweep(method, problem, fpj.Full(N), **options)
    weights = [gossip.metropolis(torus), gossip.metropolis(adjacency("ring", N))]
    shared = 0 if noise == "independent" else 9
    covariance = std**2 * (np.eye(N) + shared * (np.diag(torus.sum(axis=1)) - torus))
    mean, errors = gossip.on_quadratics(points.astype(float), weights, covariance, eta=eta, rounds=rounds)
    last, apart = np.asarray(found["params"]).reshape(300, d), np.asarray(found["consensus_distance"])[..., -1].ravel()
    of_mean = np.mean((last - mean.mean(axis=0)) ** 2)
    assert of_mean == pytest.approx(errors.mean(), rel=5 * np.sqrt(2 / (300 * d)))
    center = np.eye(N) - 1 / N
    expected = (np.sum((center @ mean) ** 2) + d * np.trace(center @ errors @ center)) / N
    assert np.mean(apart**2) == pytest.approx(expected, rel=5 * np.std(apart**2) / np.sqrt(300) / expected)
    assert np.std(apart**2) < expected


def _quadratic(x, record):
    return 0.5 * ((x - record) ** 2).sum()


@pytest.mark.parametrize("devices", sparing([2, 4], quick=[]))
def test_machines_divided_over_devices_give_the_same_run(devices):
    """9 machines on 4 devices: the last one holds copies."""
    method = fpj.DSGD(**SETTINGS, mixing=["ring", DIRECTED], batch=BATCH, noise_schedule=SHARED)
    options: dict[str, Any] = {
        "rounds": 8,
        "metrics": ["test_loss", "consensus_distance", "worst_model_loss"],
        "eval_every": 3,
    }
    alone = fpj.simulate(method, PROBLEM, fpj.Full(N), **options)
    divided = fpj.simulate(method, PROBLEM, fpj.Full(N), **options, mesh={"machines": devices})
    np.testing.assert_allclose(divided.params, alone.params, atol=1e-6)
    for name, values in alone.metrics.items():
        np.testing.assert_allclose(divided.metrics[name], values, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_numbers_and_weights_do_not_recompile():
    sizes = []
    for mixing, noise in (("ring", SHARED), (fpj.Torus(3, 3), SHARED), (DIRECTED, fpj.Pairwise("ring", 3.0))):
        method = fpj.DSGD(clip=CLIP, mixing=mixing, batch=BATCH, noise_schedule=noise)
        over = {"epsilon": [1.0, 2.0], "step_size": [0.1, 0.2]}
        found = fpj.sweep(method, PROBLEM, fpj.Full(N), over=over, rounds=4, seeds=2, metrics=["test_loss"])
        sizes.append(run_chunk._cache_size())
    assert sizes[0] == sizes[1] == sizes[2]
    alone = fpj.simulate(method.replace(epsilon=2.0, step_size=0.2), PROBLEM, fpj.Full(N), rounds=4, seed=1)
    cell = found["test_loss"].sel(epsilon=2.0, step_size=0.2, seed=1)
    np.testing.assert_allclose(np.asarray(cell).ravel()[-1], alone.metrics["test_loss"][-1], rtol=1e-5)


def test_costs_count_edges():
    for mixing, links in (("ring", 2.0), (fpj.Torus(3, 3), 4.0), (DIRECTED, 1.0), (fpj.Matchings(5), 8 / 9)):
        run = fpj.ready(fpj.DSGD(**SETTINGS, batch=BATCH, mixing=mixing), PROBLEM, fpj.Full(N), rounds=10)
        assert run.costs["sent_messages"] == pytest.approx(links)
        assert run.costs["sent_bits"] == pytest.approx(links * 32 * PROBLEM.dimension)
        assert run.costs["sent_bytes"] == pytest.approx(links * 40 * PROBLEM.dimension)


def test_one_networkx_graph_and_zeros_and_ones_are_graphs():
    for given in (networkx.cycle_graph(N), adjacency("ring", N)):
        np.testing.assert_allclose(as_mixing(given).weights(N), [gossip.metropolis(adjacency("ring", N))])
    two = as_mixing([networkx.cycle_graph(N), networkx.complete_graph(N)]).weights(N)
    np.testing.assert_allclose(two[1], np.full((N, N), 1 / N))


def test_random_pairs_are_drawn_uniformly():
    weights = fpj.Mixing(fpj.Matchings(4000, seed=1)).weights(5)
    off = weights.mean(axis=0)[~np.eye(5, dtype=bool)]
    np.testing.assert_allclose(off, 0.5 / 5, atol=5 * 0.25 / np.sqrt(4000))  # 2 of 10 pairs a round, weight 1/2
    assert (np.sort(weights, axis=2)[..., :3] == 0).all()
    assert not np.array_equal(weights, fpj.Mixing(fpj.Matchings(4000, seed=2)).weights(5))


def gossip_with(privacy, **settings):
    return fpj.Protocol(fpj.Gossip(**settings), privacy=privacy, noise_std=1.0, step_size=0.1)


FEW = np.kron(np.eye(3), np.full((3, 3), 1 / 3))
NEGATIVE = np.eye(N) + np.diag([0.5] * (N - 1), 1) - np.diag([0.5] * (N - 1), -1)
MADE = {
    "negative": (lambda: fpj.DSGD(mixing=NEGATIVE), r"no negative weights, got -0\.5 in row 1, column 0"),
    "rows": (lambda: fpj.DSGD(mixing=0.9 * DIRECTED), r"sum to 1, got 0\.9 in row 0"),
    "columns": (lambda: fpj.DSGD(mixing=[[0.5, 0.5], [0.2, 0.8]]), r"sum to 1, got 0\.7 in column 0\. Balance"),
    "shape": (lambda: fpj.DSGD(mixing=np.full((2, 3), 0.5)), r"must be a square matrix, got shape \[2, 3\]"),
    "name": (lambda: fpj.DSGD(mixing="rings"), "unknown kind of graph 'rings'"),
    "nothing": (lambda: fpj.DSGD(mixing=[]), "must have a graph or a matrix, got none"),
    "key": (lambda: fpj.DSGD(mixing={"kind": "matchings", "round": 3}), "key of mixing 'matchings' 'round'"),
    "nan": (lambda: fpj.DSGD(mixing=np.full((2, 2), np.nan)), "no negative weights, got nan"),
    "gossip of gossip": (lambda: fpj.Gossip(fpj.Gossip()), "steps must be those of one machine"),
    "momentum": (lambda: gossip_with(fpj.NoisyMomentum(clip=1.0, batch=2)), "privacy must be a NoisyMessages or a Noi"),
    "server's mean": (lambda: gossip_with(fpj.GaussianMean(clip=1.0)), "privacy must be a NoisyMessages or a NoisyRec"),
    "noise": (lambda: fpj.DSGD(noise_schedule="tree"), "noise must be 'independent' or a Pairwise"),
}
RUN = {
    "pieces": (lambda: fpj.DSGD(**SETTINGS, batch=1, mixing=FEW), "mixing must be connected, got 3 pieces"),
    "pieces in turn": (lambda: fpj.DSGD(**SETTINGS, batch=1, mixing=[FEW, FEW]), "mixing must be connected, got 3"),
    "machines": (
        lambda: fpj.DSGD(**SETTINGS, batch=1, mixing=fpj.Torus(4, 4)),
        r"^machines must be 16, .*, got 9\. Use 16",
    ),
    "trust": (lambda: gossip_with(fpj.NoisyMessages(clip=1.0, trust="server")), "trust must be 'none' with gossip"),
    "shuffler": (
        lambda: gossip_with(fpj.NoisyRecords(clip=1.0, batch=1, trust="shuffler")),
        "trust must be 'none' with gossip",
    ),
    "cancelled": (lambda: gossip_with(fpj.NoisyMessages(clip=1.0, noise="uniform")), "noise must be 'independent' or"),
    "sum": (
        lambda: fpj.DSGD(**SETTINGS, batch=1, adversary=fpj.SecureSum()),
        r"adversary must see every message with gossip, .* got secure-sum\. Use Local.* in a file .local., or \{ kind",
    ),
    "neighbours": (lambda: fpj.DSGD(**SETTINGS, batch=1, adversary=fpj.Neighbours("ring")), "adversary must see every"),
    "colluders": (lambda: fpj.DSGD(**SETTINGS, batch=1, adversary=fpj.Coalition(2)), "adversary must see every mess"),
    "final": (lambda: fpj.DSGD(**SETTINGS, batch=1, adversary=fpj.FinalModel()), "adversary must see every message"),
    "step": (lambda: fpj.DSGD(clip=1.0, epsilon=1.0, batch=1), "step_size must be"),
    "reads": (
        lambda: gossip_with(fpj.NoisyMessages(clip=1.0), steps=fpj.DPMu2(mu=1.0).algorithm),
        r"reads of Mu2 must be Mean\(\) with gossip",
    ),
}


@pytest.mark.parametrize(("make", "message"), MADE.values(), ids=MADE)
def test_settings_are_refused_in_one_line(make, message):
    with pytest.raises(fpj.Refusal, match=message) as refusal:
        make()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("make", "message"), RUN.values(), ids=RUN)
def test_runs_are_refused_in_one_line(make, message):
    with pytest.raises(fpj.Refusal, match=message) as refusal:
        fpj.ready(make(), PROBLEM, fpj.Full(N), rounds=2)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("scheme", [fpj.Uniform(N, 4), fpj.Dropouts(fpj.Full(N), 0.2), fpj.PoissonCohorts(N, 0.5)])
def test_absent_machines_are_refused(scheme):
    with pytest.raises(fpj.Refusal, match=r"participation must be Full with gossip|must be public|trust"):
        fpj.ready(fpj.DSGD(**SETTINGS, batch=1), PROBLEM, scheme, rounds=2)


def test_metrics_of_models_need_models():
    with pytest.raises(
        fpj.Refusal, match=r"'consensus_distance' must be of machines .* got NoisySGD\. Use DSGD or Gos"
    ):
        fpj.ready(fpj.NoisySGD(mu=1.0, clip=1.0), PROBLEM, fpj.Full(N), rounds=2, metrics=["consensus_distance"])


def test_a_file_names_the_mixing():
    table = """
[[protocol]]
name = "dsgd"
step_size = 0.1
clip = 1.0
sampler = "full"
mixing = ["ring", { kind = "torus", rows = 2, columns = 3 }, { kind = "matchings", rounds = 4 }]
noise_schedule = { kind = "pairwise", graph = "ring", shared = 2.0 }
[[protocol]]
name = "gossip"
steps = { kind = "sgd", average = true }
mixing = "complete"
step_size = 0.1
privacy = { kind = "messages", clip = 1.0 }
[sweep]
epsilon = [2.0]
"""
    first, second = parse(tomllib.loads(f'title = "gossip"\n{FEDERATION}\n{table}')).protocol
    made = first.make({"epsilon": 2.0})
    assert made.mixing == fpj.Mixing("ring", fpj.Torus(2, 3), fpj.Matchings(4))
    assert made.privacy.noise == fpj.Pairwise("ring", 2.0)
    assert second.make({"epsilon": 2.0}).algorithm == fpj.Gossip(SGD(average=True), "complete")


@pytest.mark.slow
def test_an_optax_transformation_steps_at_every_machine():
    method = fpj.DSGD(**{**SETTINGS, "noise_std": 0.0}, sampler="full", mixing="complete", server=optax.sgd)
    plain = fpj.DSGD(**{**SETTINGS, "noise_std": 0.0}, sampler="full", mixing="complete")
    found, wanted = (fpj.simulate(one, PROBLEM, fpj.Full(N), rounds=5).params for one in (method, plain))
    np.testing.assert_allclose(found, wanted, atol=1e-6)
