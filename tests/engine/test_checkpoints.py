"""A run with a folder goes on from its checkpoint, bit for bit, if everything that it depends on is equal."""

import json
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from flax import struct
from heavy_ball import HeavyBall

from fedprivjax import (
    Ball,
    DPMu2,
    FedAvg,
    Full,
    Given,
    Metric,
    NoisyMessages,
    NoisyMinibatchSGD,
    NoisySGD,
    Protocol,
    Refusal,
    Scaffold,
    SecretSubsets,
    Softmax,
    Uniform,
    UserAGD,
    linear_problem,
    ready,
    simulate,
)
from fedprivjax.engine.checkpoint import FILE
from fedprivjax.engine.segments import advance
from fedprivjax.protocols import PROTOCOLS
from fedprivjax.testing.device_cases import cases

RNG = np.random.default_rng(0)
FEATURES, LABELS = RNG.normal(size=(240, 3)), RNG.integers(0, 2, 240)
PROBLEM = linear_problem(FEATURES, LABELS, Softmax(2), feature_bound=9.0, constraint=Ball(1.0))
SPLIT = linear_problem(
    FEATURES, LABELS, Softmax(2), feature_bound=9.0, constraint=Ball(1.0), partition_table=np.arange(240).reshape(6, 40)
)
NOISY = NoisySGD(noise_std=0.5, clip=1.0, step_size=0.1)
CANCELLED = DPMu2(noise_std=0.5, clip=1.0, step_size=0.1)
LOCAL = Scaffold(local_steps=2, batch=4, noise_std=0.0, step_size=0.1)
USERS = UserAGD(noise_std=0.5, clip=1.0, step_size=0.1)
OPTIONS: dict[str, Any] = {"rounds": 20, "eval_every": 3, "seed": 3}


class Stopped(Exception):
    """Raised instead of a kill."""


def run(protocol: Protocol = NOISY, problem=PROBLEM, **changes: Any):
    return simulate(protocol, problem, Uniform(6, 3), **{**OPTIONS, **changes})


def stop(folder, after, **changes: Any):
    """Run until an evaluation, and leave the checkpoint in a folder."""

    def stopping(rounds, metrics):
        if rounds >= after:
            raise Stopped

    with pytest.raises(Stopped):
        run(folder=folder, on_evaluation=stopping, checkpoint_every=3, **changes)


def assert_equal(one: Any, other: Any):
    one, other = (jax.tree.leaves((run.params, run.iterates)) for run in (one, other))
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


CASES = [(NOISY, PROBLEM, 9), (CANCELLED, PROBLEM, 12), (LOCAL, SPLIT, 12)]


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "problem", "after"), CASES)
def test_a_stopped_run_goes_on_bit_for_bit(protocol, problem, after, tmp_path):
    changes = {"protocol": protocol, "problem": problem}
    whole = run(on_evaluation=lambda *_: None, **changes)
    stop(tmp_path, after, **changes)
    heard, before = [], advance._cache_size()
    assert_equal(run(folder=tmp_path, on_evaluation=lambda rounds, _: heard.append(rounds), **changes), whole)
    assert heard == [rounds for rounds in (3, 6, 9, 12, 15, 18, 20) if rounds >= after]
    np.testing.assert_allclose(run(**changes).params, whole.params, rtol=1e-6)
    assert_equal(run(folder=tmp_path, on_evaluation=lambda *_: pytest.fail("called"), **changes), whole)
    assert advance._cache_size() == before
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("rounds", [18, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_is_extended(rounds, tmp_path):
    whole = run(rounds=31, on_evaluation=lambda *_: None)
    run(folder=tmp_path, rounds=rounds)
    longer = run(folder=tmp_path, rounds=31)
    assert_equal(longer, whole)
    assert longer.guarantee.epsilon == whole.guarantee.epsilon
    assert_equal(run(folder=tmp_path, rounds=31), whole)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "noise": ({"protocol": replace(NOISY, noise_std=0.25)}, "noise_std must be as in the checkpoint {}, 0.5, got 0.25"),
    "method": ({"protocol": CANCELLED}, "protocol must be as in the checkpoint {}, NoisySGD, got DPMu2"),
    "seed": ({"seed": 4}, "noise seed must be as in the checkpoint {}, 3, got 4"),
    "evaluations": ({"eval_every": 4}, "eval_every must be as in the checkpoint {}, 3, got 4"),
    "rounds": ({"rounds": 8}, "rounds must be at least 12, which the run of the checkpoint {} may "),
    "data": (
        {"problem": linear_problem(-FEATURES, LABELS, Softmax(2), feature_bound=9.0, constraint=Ball(1.0))},
        "data must be as in the checkpoint {}, got another",
    ),
    "radius": (
        {"problem": linear_problem(FEATURES, LABELS, Softmax(2), feature_bound=9.0, constraint=Ball(2.0))},
        "problem.constraint.radius must be as in the checkpoint {}, 1.0, got 2.0",
    ),
    "rounds that were reported": (
        {"rounds": 11},
        "rounds must be at least 12, which the run of the checkpoint {} may ",
    ),
    "order": ({"order": "stored"}, "plan.samples must be as in the checkpoint {}, got another"),
    "a target": (
        {"protocol": NoisySGD(mu=1.0, clip=1.0, step_size=0.1), "rounds": 30},
        "noise_std must be as in the checkpoint {}, 0.5, got 2.0. Give noise_std instead of a target, keep rounds = 20",
    ),
    "precision": ({"precision": "tf32"}, "precision must be as in the checkpoint {}, float32, got tf32"),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    stop(folder, 12)
    return folder


@pytest.mark.slow
def test_another_algorithm_of_the_same_program_is_refused(tmp_path):
    @struct.dataclass
    class Renamed(HeavyBall):
        pass

    pairs = [
        Protocol(one(), privacy=NoisyMessages(clip=1.0), noise_std=0.5, step_size=0.1) for one in (HeavyBall, Renamed)
    ]
    run(folder=tmp_path, protocol=pairs[0], rounds=4)
    with pytest.raises(Refusal, match=r"^protocol must be as in the checkpoint .*heavy_ball\.HeavyBall\(.*Renamed"):
        run(folder=tmp_path, protocol=pairs[1], rounds=8)


@pytest.mark.parametrize(("changes", "line"), REFUSED.values(), ids=REFUSED)
def test_another_run_is_refused_in_one_line(changes, line, stopped):
    with pytest.raises(Refusal) as caught:
        run(folder=stopped, **changes)
    assert str(caught.value).startswith(line.format(stopped / FILE))
    assert "\n" not in str(caught.value)


def test_a_public_schedule_does_not_become_secret_afterwards(tmp_path):
    method = FedAvg(
        noise_std=0.5, update_clip=1.0, step_size=0.1, local_steps=1, batch=4, unit="machine", trust="server"
    )
    public = simulate(method, SPLIT, Uniform(6, 3), folder=tmp_path, **OPTIONS)
    alone = ready(method, SPLIT, SecretSubsets(6, 3), **OPTIONS)
    assert alone.guarantee.epsilon < public.guarantee.epsilon
    with pytest.raises(Refusal, match=r"^secrecy must be .*, nothing secret, got secret participation\. Use what"):
        simulate(method, SPLIT, SecretSubsets(6, 3), folder=tmp_path, **OPTIONS)


def test_senders_are_not_hidden_afterwards(tmp_path):
    method = NoisyMinibatchSGD(noise_std=0.5, clip=1.0, step_size=0.1, sampler="subset", batch=1)
    run(method, SPLIT, folder=tmp_path)
    with pytest.raises(Refusal, match=r"^trust must be as in the checkpoint .*, none, got shuffler"):
        run(replace(method, trust="shuffler"), SPLIT, folder=tmp_path)


@pytest.mark.slow
def test_a_metric_of_another_program_is_refused(tmp_path):
    metric = Metric("norm", lambda problem, snapshot: (snapshot.params**2).sum())
    other = Metric("norm", lambda problem, snapshot: abs(snapshot.params).sum())
    stop(tmp_path, 9, metrics=[metric])
    with pytest.raises(Refusal, match=r"^program must be as in the checkpoint .*, got another"):
        run(folder=tmp_path, metrics=[other])


def test_a_metric_that_calls_the_host_is_refused(tmp_path):
    def loud(problem, snapshot):
        jax.debug.callback(lambda: None)
        return abs(snapshot.params).sum()

    with pytest.raises(Refusal, match=r"^protocol and metrics must not call the host in a run with folder"):
        run(folder=tmp_path, metrics=[Metric("loud", loud)])


@pytest.mark.slow
def test_noise_that_depends_on_the_number_of_rounds_is_not_extended(tmp_path):
    simulate(CANCELLED, PROBLEM, Full(6), folder=tmp_path, **OPTIONS)
    with pytest.raises(
        Refusal, match=r"^noise over rounds must be .* It changes with the number of rounds: keep rounds = 20"
    ):
        simulate(CANCELLED, PROBLEM, Full(6), folder=tmp_path, **{**OPTIONS, "rounds": 30})


@pytest.mark.slow
def test_a_method_whose_rounds_depend_on_their_number_is_not_extended(tmp_path):
    run(USERS, folder=tmp_path)
    with pytest.raises(Refusal, match=r"must be as in the checkpoint .* keep rounds = 20"):
        run(USERS, folder=tmp_path, rounds=30)


def test_rounds_that_a_killed_or_finished_run_may_have_reported_are_not_computed_with_other_machines(tmp_path):
    """With the same noise in messages of other machines, their difference would be without noise."""

    def go(path, rounds, swapped_from=99, stop_at=99, **options):
        def stopping(completed, metrics):
            if completed >= stop_at:
                raise Stopped

        cohorts = [[0, 1, 2] if number < swapped_from else [3, 4, 5] for number in range(rounds)]
        options |= {"seed": 3, "eval_every": 3, "checkpoint_every": 9, "folder": path, "on_evaluation": stopping}
        return simulate(NOISY, SPLIT, Given(6, cohorts), **options)

    with pytest.raises(Stopped):
        go(tmp_path / "killed", 21, stop_at=15)
    with pytest.raises(Refusal, match=r"^plan\.[a-z.]+ must be as in the checkpoint .*, got another"):
        go(tmp_path / "killed", 21, swapped_from=10)
    go(tmp_path / "killed", 21, swapped_from=18)
    go(tmp_path / "finished", 20)
    with pytest.raises(Refusal, match=r"^plan\.[a-z.]+ must be as in the checkpoint .* keep rounds = 20"):
        go(tmp_path / "finished", 31, swapped_from=19)
    go(tmp_path / "finished", 31, swapped_from=20)


@pytest.mark.parametrize("content", [b"", b"PK", None])
def test_a_damaged_checkpoint_is_refused(content, stopped, tmp_path):
    whole = (stopped / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(Refusal, match=rf"^checkpoint .*{FILE} must be readable, got a damaged file"):
        run(folder=tmp_path)


def test_a_checkpoint_without_a_part_is_refused(stopped, tmp_path):
    with np.load(stopped / FILE, allow_pickle=False) as found:
        arrays = dict(found)
    about = json.loads(str(arrays.pop("about")))
    del about["reached"]
    np.savez(tmp_path / FILE, about=np.array(json.dumps(about)), **arrays)
    with pytest.raises(Refusal, match=rf"^checkpoint .*{FILE} must be readable, got a damaged file"):
        run(folder=tmp_path)


def test_another_version_is_refused(stopped, monkeypatch):
    monkeypatch.setattr("fedprivjax.engine.fingerprint.versions", lambda: {"version of fedprivjax": "9"})
    with pytest.raises(Refusal, match=r"^version of fedprivjax must be as in the checkpoint .*, got 9"):
        run(folder=stopped)


def test_folders_are_checked(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Refusal, match=r"^folder must be a folder, got "):
        run(folder=tmp_path / "file")
    with pytest.raises(Refusal, match=r"^checkpoint_every must go with folder, got 3 alone"):
        run(checkpoint_every=3)
    with pytest.raises(Refusal, match=r"^checkpoint_every must be at least 1, got 0"):
        run(folder=tmp_path, checkpoint_every=0)


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "problem"), [(CANCELLED, PROBLEM), (LOCAL, SPLIT)])
def test_a_run_on_a_mesh_goes_on(protocol, problem, tmp_path):
    changes = {"protocol": protocol, "problem": problem, "mesh": {"machines": 4}}
    whole = run(on_evaluation=lambda *_: None, **changes)
    np.testing.assert_allclose(whole.params, run(**changes).params, rtol=1e-6, atol=1e-7)
    stop(tmp_path, 12, **changes)
    assert_equal(run(folder=tmp_path, **changes), whole)
    with pytest.raises(Refusal, match=r"^mesh must be as in the checkpoint"):
        run(folder=tmp_path, protocol=protocol, problem=problem)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("mesh", [None, {"machines": 4}], ids=["device", "mesh"])
def test_every_method_goes_on_and_segments_are_the_plain_run(name, mesh, tmp_path):
    case = next(iter(cases({name: PROTOCOLS[name]})))
    options = {"rounds": 12, "eval_every": 5, "metrics": ["train_loss", "noise_norm"], "mesh": mesh}

    def go(**changes: Any):
        return simulate(case.protocol, case.problem, case.participation, **options, **changes)

    def stopping(rounds, metrics):
        if rounds >= 10:
            raise Stopped

    plain = go()
    assert_equal(go(on_evaluation=lambda *_: None), plain)
    with pytest.raises(Stopped):
        go(folder=tmp_path, on_evaluation=stopping, checkpoint_every=5)
    assert_equal(go(folder=tmp_path), plain)
