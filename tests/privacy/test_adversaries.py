"""Guarantees against adversaries: exposures by the covariance of whole runs, enumerated coalitions, refusals."""

import tomllib
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import pytest
from flax import struct
from pairwise_messages import RingMessages

import fedprivjax as fpj
from fedprivjax.experiment.read import parse
from fedprivjax.plan.schedule import Schedule
from fedprivjax.privacy import coalition
from fedprivjax.privacy.adversaries import BY_TRUST, LinearAdversary, Local
from fedprivjax.privacy.adversary_names import ADVERSARIES
from fedprivjax.privacy.against import event_against
from fedprivjax.privacy.views import FullView, SentNoise, squares
from fedprivjax.protocols.noisy_sgd import SGD

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 3)).astype(np.float32)
Y = RNG.integers(0, 2, 80)
TABLE = np.arange(80).reshape(8, 10)
PROBLEM = fpj.linear_problem(X, Y, fpj.Logistic(), constraint=fpj.Ball(1.0), partition_table=TABLE)
UPDATES = {"unit": "machine", "update_clip": 1.0, "trust": "none", "local_epochs": 1, "batch": 5, "step_size": 0.1}


@dataclass(frozen=True)
class Edges(LinearAdversary):
    """The sums of edge servers with every second machine."""

    number: int = 2
    name, sees = "edges", "the sum of the messages of every edge server's machines"

    def rows(self, machines):
        return machines % self.number == np.arange(self.number)[:, None]


@dataclass(frozen=True)
class First(LinearAdversary):
    """The difference of the first two messages, in other units."""

    name, sees = "first", "a difference"

    def rows(self, machines):
        return 7 * np.eye(machines.size)[[0]] - 7 * np.eye(machines.size)[[-1]]


SEEN = (fpj.SecureSum(), fpj.ThirdParty(), fpj.FinalModel(), Edges(), Edges(3), First())


def scheduled(dropped=False):
    participants = np.array([RNG.permutation(6)[:4] for _ in range(5)], np.int32)
    lost = RNG.random((5, 4)) < 0.3 if dropped else None
    return Schedule(6, participants, dropped=lost)


def by_run(matrix_of, schedule, sent, machine, honest=None, once=False):
    """μ² of a machine by the covariance of all that is seen in the run, for messages that all move alike."""
    found = []
    for t, machines in enumerate(schedule.participants):
        own = machines == machine
        sends = (schedule.present[t] | own) & (np.ones(4, bool) if honest is None else np.isin(machines, honest))
        if not (own & schedule.scheduled[t]).any():
            continue
        seen = matrix_of(machines)[:, sends]
        noise = np.diag(sent.variances[t, sends])
        moved = seen @ own[sends].astype(float)
        found.append(moved @ np.linalg.pinv(seen @ noise @ seen.T) @ moved)
    return max(found, default=0.0) if once else sum(found)


def matrix_of(adversary):
    return lambda machines: np.vstack([np.ones(machines.size), np.asarray(adversary.rows(machines), float)])


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("adversary", SEEN, ids=str)
def test_exposures_are_those_of_the_whole_run(adversary, dropped, once):
    schedule = scheduled(dropped)
    sent = SentNoise(RNG.uniform(0.5, 2.0, (5, 4)), once=once)
    exact = [by_run(matrix_of(adversary), schedule, sent, machine, once=once) for machine in range(6)]
    np.testing.assert_allclose(adversary.exposures(sent, schedule) ** 2, exact, rtol=1e-9)
    machine = int(np.argmax(exact))
    np.testing.assert_allclose(np.sum(adversary.releases(sent, schedule, machine) ** -2.0), max(exact), rtol=1e-9)


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("server", [fpj.SecureSum(), Edges(), First()], ids=str)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_worst_coalition_is_found_by_enumeration(size, server, dropped, once, monkeypatch):
    schedule = scheduled(dropped)
    sent = SentNoise(RNG.uniform(0.5, 2.0, (5, 4)), once=once)
    exact = np.zeros(6)
    for members in combinations(range(6), size):
        others = np.setdiff1d(np.arange(6), members)
        each = [by_run(matrix_of(server), schedule, sent, machine, others, once) for machine in others]
        exact[others] = np.maximum(exact[others], each)
    found = fpj.Coalition(size, server).exposures(sent, schedule) ** 2
    np.testing.assert_allclose(found, exact, rtol=1e-9)
    if isinstance(server, fpj.SecureSum):
        monkeypatch.setattr(coalition, "MOST_COALITIONS", 0)
        bounds = fpj.Coalition(size, server).exposures(sent, schedule) ** 2
        assert (bounds >= exact * (1 - 1e-12)).all()
        if size == 5:
            np.testing.assert_allclose(bounds, exact, rtol=1e-9)


def test_the_bound_is_exact_for_equal_noise_and_all_machines():
    schedule = Schedule(200, np.tile(np.arange(200, dtype=np.int32), (3, 1)))
    found = fpj.Coalition(20).exposures(SentNoise(np.ones((3, 200))), schedule)  # more than 10⁴ coalitions
    np.testing.assert_allclose(found**2, 3 / 180, rtol=1e-12)


def test_local_exposures_are_those_of_messages():
    """Coalitions who see every message gain nothing by their own noise, unless noise is shared."""
    assert fpj.Coalition(2, Local()).exposures(SentNoise(np.ones((5, 4))), scheduled()) is None
    ring, schedule = RingMessages(), Schedule(5, np.arange(5, dtype=np.int32)[None])
    sent = SentNoise(np.ones((1, 5)), True, ring.covariance)
    found = fpj.Coalition(2, Local()).exposures(sent, schedule) ** 2
    exact = 0.0
    for members in combinations(range(5), 2):
        honest = ~np.isin(np.arange(5), members)
        own = np.linalg.inv(ring.covariance(np.arange(5), honest)[np.ix_(honest, honest)])
        exact = max(exact, np.diag(own).max())
    np.testing.assert_allclose(found, exact, rtol=1e-9)
    assert exact == pytest.approx(1.0)  # between two known neighbours, a machine has its own noise alone


def test_noise_that_cancels_hides_nothing():
    assert np.isinf(squares(np.ones((1, 2)), np.array([[1.0, -1.0], [-1.0, 1.0]]))).all()
    assert np.isinf(squares(np.eye(3), np.diag([1.0, 1.0, 0.0]))).tolist() == [False, False, True]


# ---- runs


def guarantee_of(adversary, seed=1, **settings):
    method = fpj.FedAvg(**{**UPDATES, "noise_std": 2.0, **settings}, adversary=adversary)
    return fpj.ready(method, PROBLEM, fpj.Uniform(8, 4), rounds=6, seed=seed).guarantee


def test_noise_of_the_cohort_counts_against_who_sees_sums():
    local = guarantee_of(None)
    assert guarantee_of(Local()).mu == local.mu
    for adversary in (fpj.SecureSum(), fpj.ThirdParty(), fpj.FinalModel()):
        stated = guarantee_of(adversary)
        assert stated.mu == pytest.approx(local.mu / 2)  # four machines send in a round
        assert adversary.sees in str(stated)
        assert "every other machine adds its noise" in str(stated)
    assert guarantee_of(fpj.Coalition(7)).mu == pytest.approx(local.mu)
    assert local.mu / 2 < guarantee_of(fpj.Coalition(1)).mu < guarantee_of(fpj.Coalition(3)).mu < local.mu


def test_a_record_is_in_one_message():
    settings = {"clip": 1.0, "noise_std": 2.0}
    problem = fpj.linear_problem(X, Y, fpj.Logistic(), constraint=fpj.Ball(1.0))
    one, sums = (
        fpj.ready(fpj.NoisySGD(**settings, adversary=adversary), problem, fpj.Uniform(8, 4), rounds=6).guarantee
        for adversary in (None, fpj.SecureSum())
    )
    assert sums.mu == pytest.approx(one.mu / 2)


@pytest.mark.parametrize("sampler", ["full", "subset", "poisson"])
def test_sampled_records_are_hidden_by_the_noise_of_the_cohort(sampler):
    """Four messages have twice the noise of one: the guarantee is that of messages with twice the noise."""

    def guarantee(adversary, noise_std, **settings):
        samples = {} if sampler == "full" else {"batch": 3}
        method = fpj.NoisyMinibatchSGD(clip=1.0, sampler=sampler, noise_std=noise_std, adversary=adversary, **samples)
        return fpj.ready(replace(method, **settings), PROBLEM, fpj.Uniform(8, 4), rounds=12, seed=1).guarantee

    stated = guarantee(fpj.SecureSum(), 2.0)
    assert stated.epsilon == pytest.approx(guarantee(None, 4.0).epsilon, rel=1e-9)
    assert "every other machine adds its noise" in str(stated)
    three_known = guarantee(fpj.Coalition(7), 2.0)
    assert three_known.epsilon == pytest.approx(guarantee(None, 2.0).epsilon, rel=1e-9)
    if sampler == "poisson":
        assert stated.for_user(2, exact=True).epsilon > stated.epsilon
        with pytest.raises(fpj.Refusal, match="on several machines, got 'none, against secure-sum'"):
            stated.for_group(2, exact=True)


def test_unequal_noises_of_records_add_up():
    """The least hidden message of a machine counts, whose cohort has the least noise."""
    method = fpj.NoisyMinibatchSGD(
        clip=1.0, sampler="full", epsilon=4.0, relative_privacy=[1.0] * 4 + [0.25] * 4, adversary=fpj.SecureSum()
    )
    start = fpj.ready(method, PROBLEM, fpj.Uniform(8, 4), rounds=12, seed=1)
    private, schedule = start.protocol, start.plan.schedule
    sent = private.rounds.sent_noise(PROBLEM, start.plan)
    least = [
        min(sent.variances[t].sum() for t, machines in enumerate(schedule.participants) if machine in machines)
        for machine in range(8)
    ]
    alone = replace(private, adversary=None).event(PROBLEM, start.plan)
    own = alone.releases.shift[alone.releases.group] * np.sqrt(
        [sent.variances[schedule.participants == i][0] for i in range(8)]
    )
    event = start.event
    np.testing.assert_allclose(event.releases.shift[event.releases.group], own / np.sqrt(least), rtol=1e-9)
    assert start.guarantee.epsilon <= 4.0 * (1 + 1e-6)


@pytest.mark.parametrize("adversary", [fpj.SecureSum(), fpj.Coalition(1), Edges()], ids=str)
def test_noise_meets_the_target_against_the_adversary(adversary):
    stated = guarantee_of(adversary, noise_std=None, epsilon=2.0)
    assert stated.epsilon == pytest.approx(2.0, rel=1e-5)
    assert stated.epsilon <= 2.0 * (1 + 1e-6)


def test_without_known_noise_the_guarantee_is_that_of_the_messages():
    settings = {"unit": "record", "clip": 1.0, "local_epochs": 1, "batch": 5, "step_size": 0.1, "noise_std": 3.0}
    messages, sums, known = (
        fpj.ready(fpj.FedAvg(**settings, adversary=adversary), PROBLEM, fpj.Uniform(8, 4), rounds=6).guarantee
        for adversary in (None, fpj.SecureSum(), fpj.Coalition(2))
    )
    assert messages.epsilon == sums.epsilon == known.epsilon
    assert "against secure-sum by post-processing" in sums.theorem


def test_a_trusted_servers_guarantee_covers_third_parties():
    settings = {"trust": "server", "noise_std": 2.0}
    schemes = fpj.Uniform(8, 4), fpj.PoissonCohorts(8, 0.5)
    for scheme in schemes:
        central, third = (
            fpj.ready(fpj.FedAvg(**{**UPDATES, **settings}, adversary=one), PROBLEM, scheme, rounds=4, seed=1).guarantee
            for one in (None, fpj.ThirdParty())
        )
        assert central.epsilon == third.epsilon
        assert third.terms.adversary == "third-party"


def test_a_saved_guarantee_names_its_adversary():
    stated = guarantee_of(fpj.Coalition(2))
    again = fpj.PrivacyGuarantee.from_json(stated.to_json())
    assert str(again) == str(stated)
    assert "the data and seeds of any 2 machines" in str(again)
    assert again.terms.against == "none, against coalition(size=2, server=secure-sum)"


def test_runs_against_different_adversaries_are_not_composed():
    with pytest.raises(fpj.Refusal, match="other must be against the same adversary, secure-sum, got that of trust"):
        guarantee_of(fpj.SecureSum()).then(guarantee_of(None, seed=2))


# ---- views


def test_views_hold_what_adversaries_see():
    messages, machines = RNG.normal(size=(5, 4, 2)), scheduled().participants
    full = FullView(np.zeros((5, 2)), messages, (), 0, machines=machines)
    np.testing.assert_allclose(fpj.SecureSum().view(full).messages[:, 0], messages.sum(axis=1))
    seen = Edges().view(full).messages
    np.testing.assert_allclose(seen[:, 0], seen[:, 1] + seen[:, 2])
    assert fpj.ThirdParty().view(full).messages is None
    assert fpj.FinalModel().view(full).queries.shape == (0, 2)
    known = machines == 3
    rest = np.where(known[..., None], 0, messages).sum(axis=1)
    np.testing.assert_allclose(fpj.Coalition(1).view(full._replace(known=known)).messages[:, 0], rest)


@pytest.mark.parametrize("adversary", [fpj.SecureSum(), fpj.FinalModel(), Edges()], ids=str)
def test_transcripts_hold_the_adversarys_view(adversary):
    everything, seen = (
        fpj.transcript(fpj.FedAvg(**UPDATES, noise_std=2.0, adversary=one), PROBLEM, fpj.Uniform(8, 4), rounds=3)
        for one in (None, adversary)
    )
    if adversary == fpj.FinalModel():
        assert seen.messages is None
        assert seen.queries.shape[0] == 0
        assert seen.broadcast == ()
    else:
        np.testing.assert_allclose(seen.messages[:, 0], everything.messages.sum(axis=1), rtol=1e-4, atol=1e-5)


# ---- experiment files and refusals


def of_file(adversary):
    text = f"""
    title = "adversaries"
    [problem]
    dataset = "digits"
    loss = "softmax"
    radius = 8.0
    [participation]
    kind = "uniform"
    machines = 8
    per_round = 4
    rounds = 2
    [[protocol]]
    name = "fedavg"
    unit = "machine"
    trust = "none"
    update_clip = 1.0
    local_epochs = 1
    batch = 10
    step_size = 0.1
    epsilon = 2.0
    adversary = {adversary}
    """
    return parse(tomllib.loads(text)).protocol[0].make({}).adversary


def test_experiment_files_name_adversaries():
    assert of_file('"secure-sum"') == fpj.SecureSum()
    assert of_file('{ kind = "coalition", size = 2, server = "local" }') == fpj.Coalition(2, Local())
    with pytest.raises(fpj.Refusal, match="unknown adversary 'secure-sun', did you mean 'secure-sum'"):
        of_file('"secure-sun"')


def test_every_adversary_has_a_name_and_a_text():
    assert {one.name for one in BY_TRUST.values()} < ADVERSARIES.keys()
    assert len({kind().text for kind in ADVERSARIES.values()}) == len(ADVERSARIES)


REFUSED = {
    "an adversary of another trust model": (
        lambda: guarantee_of(fpj.SecureSum(), trust="server"),
        "adversary must be one for trust = 'server', got secure-sum, which goes with trust = 'none'",
    ),
    "amplification against a server": (
        lambda: fpj.ready(
            fpj.FedAvg(**UPDATES, noise_std=1.0, adversary=fpj.SecureSum()),
            PROBLEM,
            fpj.PoissonCohorts(8, 0.5),
            rounds=3,
        ),
        "trust must be 'server' under secret participation",
    ),
    "a name": (
        lambda: guarantee_of("secure-sum"),
        r"adversary must be an Adversary, such as SecureSum\(\) \(in a file .secure-sum.\), got",
    ),
    "everyone in a coalition": (
        lambda: guarantee_of(fpj.Coalition(8)),
        "size of a Coalition must be below the number of machines, 8, got 8",
    ),
    "nobody in a coalition": (lambda: fpj.Coalition(0), "size must be at least 1, got 0"),
    "a coalition with a coalition": (
        lambda: fpj.Coalition(1, fpj.Coalition(1)),
        r"server must be SecureSum\(\), Local\(\) or a LinearAdversary \(in a file .secure-sum. or .local.\), got",
    ),
    "a shared noise without its covariance": (
        lambda: fpj.ready(
            fpj.Protocol(SGD(), privacy=Silent(), mu=1.0, step_size=0.1, adversary=fpj.Coalition(1)),
            PROBLEM,
            fpj.Full(8),
            rounds=2,
        ),
        "adversary must not know seeds if the noise of machines may depend on that of others",
    ),
}


@struct.dataclass(kw_only=True)
class Silent(RingMessages):
    """A privacy object that does not say how the noise of machines depends on that of others."""

    sent_noise = fpj.MessagePrivacy.sent_noise
    event = RingMessages.event


def test_a_coalition_needs_a_gaussian_event_for_noise_that_machines_share():
    """A coalition knows a part of shared noise, so that the guarantee of all messages does not hold against it."""
    schedule = Schedule(4, np.arange(4, dtype=np.int32)[None])
    sent = SentNoise(np.ones((1, 4)), True, RingMessages().covariance)
    event = fpj.PureEvent(1.0, fpj.Grouped.of([1.0] * 4), fpj.Terms("none", "a theorem"))
    assert event_against(fpj.SecureSum(), event, sent, schedule, independent=False).terms.adversary == "secure-sum"
    with pytest.raises(fpj.Refusal, match="adversary must not know seeds"):
        event_against(fpj.Coalition(1), event, sent, schedule, independent=False)


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_value_and_the_remedy(case):
    make, message = REFUSED[case]
    with pytest.raises(fpj.Refusal, match=message):
        make()


def test_a_custom_adversary_defines_rows_only():
    with pytest.raises(fpj.Refusal, match=r"an adversary must be known by its rows, .* got view of Blind"):

        class Blind(LinearAdversary):
            def view(self, full):
                return None

    with pytest.raises(fpj.Refusal, match="SecureSum must not be subclassed"):

        class Less(fpj.SecureSum):
            pass

    @dataclass(frozen=True)
    class Long(LinearAdversary):
        name, sees = "long", "sums"

        def rows(self, machines):
            return np.ones((1, 99))

    with pytest.raises(
        fpj.Refusal, match=r"rows of Long must be finite numbers of shape \[functions, 4\], .* \(1, 99\)"
    ):
        guarantee_of(Long())

    @dataclass(frozen=True)
    class Endless(LinearAdversary):
        name, sees = "endless", "sums"

        def rows(self, machines):
            return np.full((1, machines.size), np.inf)

    with pytest.raises(fpj.Refusal, match=r"rows of Endless must be finite .* got a number that is not finite"):
        guarantee_of(Endless())


ONE_ROUND = Schedule(4, np.array([[0, 1, 2, 3]]))


@pytest.mark.parametrize("scale", [1e-10, 1e10])
def test_a_function_is_seen_at_any_scale(scale):
    first = np.eye(4)[0]
    for matrix in (np.vstack([np.ones(4), scale * first]), np.vstack([scale * np.ones(4), np.ones(4), first])):
        np.testing.assert_allclose(squares(matrix, np.eye(4)), [1, 1 / 3, 1 / 3, 1 / 3], rtol=1e-9)


def test_rows_that_differ_little_show_their_difference():
    matrix = np.vstack([np.ones(4), np.ones(4) + 1e-10 * np.eye(4)[0]])
    np.testing.assert_allclose(squares(matrix, np.eye(4)), [1, 1 / 3, 1 / 3, 1 / 3], rtol=1e-4)


@pytest.mark.parametrize("least", [0.0, 1e-25])
def test_a_coalition_that_has_all_the_noise_leaves_none(least):
    found = fpj.Coalition(1).exposures(SentNoise(np.array([[1.0, least, least, least]])), ONE_ROUND) ** 2
    assert (found[1:] > 1e20).all()


def test_a_bound_on_coalitions_counts_small_noise_beside_large(monkeypatch):
    monkeypatch.setattr(coalition, "MOST_COALITIONS", 0)
    found = fpj.Coalition(1).exposures(SentNoise(np.array([[1e20, 1.0, 1.0, 1.0]])), ONE_ROUND) ** 2
    np.testing.assert_allclose(found[1:], 1 / 3)


def test_a_parent_or_field_of_a_custom_adversary_changes_no_guarantee():
    class Smaller:
        def exposures(self, sent, schedule):
            return np.full(schedule.machines, 0.01)

    with pytest.raises(fpj.Refusal, match=r"got exposures of Smaller\. Define name, sees and rows"):

        @dataclass(frozen=True)
        class Mixed(Smaller, LinearAdversary):
            name, sees = "mixed", "sums"

    for name in ("rows", "trusts"):
        with pytest.raises(fpj.Refusal, match=f"got {name} of Held"):
            dataclass(frozen=True)(type("Held", (LinearAdversary,), {"__annotations__": {name: object}}))


def test_a_changed_object_or_class_is_refused():
    changed = Edges()
    object.__setattr__(changed, "exposures", lambda *_: np.zeros(4))
    with pytest.raises(fpj.Refusal, match="got exposures of Edges"):
        fpj.NoisySGD(clip=1.0, mu=1.0, adversary=changed)

    @dataclass(frozen=True)
    class Later(LinearAdversary):
        name, sees = "later", "sums"

    Later.trusts = ("none", "shuffler")
    with pytest.raises(fpj.Refusal, match="got trusts of Later"):
        fpj.Coalition(1, Later())


@pytest.mark.parametrize("texts", [{"name": None, "sees": "sums"}, {"name": "x", "sees": 3}, {"name": "x"}])
def test_a_custom_adversary_has_texts(texts):
    kind = dataclass(frozen=True)(type("Silent", (LinearAdversary,), texts))
    with pytest.raises(fpj.Refusal, match="of Silent must be a text, which guarantees print"):
        fpj.NoisySGD(clip=1.0, mu=1.0, adversary=kind())


def test_equal_adversaries_with_other_rows_have_guarantees_of_their_own():
    @dataclass(frozen=True)
    class Some(LinearAdversary):
        number: int = field(default=0, compare=False)
        name, sees = "some", "some messages"

        def rows(self, machines):
            return np.eye(machines.size)[: self.number]

    run = fpj.ready(fpj.NoisySGD(clip=1.0, noise_std=1.0, step_size=0.1), PROBLEM, fpj.Full(8), rounds=4)
    one, all_seen = (replace(run.protocol, adversary=Some(n)).event(PROBLEM, run.plan).mu for n in (0, 8))
    np.testing.assert_allclose(all_seen, one * np.sqrt(8))


@pytest.mark.parametrize("wrong", [np.nan, -1.0, np.inf])
def test_stated_noise_is_checked(wrong):
    sent = SentNoise(np.array([[1.0, wrong, 1.0, 1.0]]))
    with pytest.raises(fpj.Refusal, match="variances of sent_noise must be finite"):
        sent.check((1, 4))
    with pytest.raises(fpj.Refusal, match=r"variances of sent_noise must be .* of shape"):
        SentNoise(np.ones((1, 1))).check((1, 4))
    for covariance in (np.full((4, 4), wrong * np.nan), np.triu(np.ones((4, 4))), np.eye(3)):
        sent = SentNoise(np.ones((1, 4)), covariance=lambda *_, k=covariance: k)
        with pytest.raises(fpj.Refusal, match="covariance of sent_noise must be a symmetric matrix"):
            fpj.SecureSum().exposures(sent, ONE_ROUND)
