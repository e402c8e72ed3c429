"""Exact guarantees of groups of records and of users, by quadrature and by dp-accounting's mixtures."""

import re
from itertools import product
from math import comb, exp, fsum

import numpy as np
import pytest
from cases import sparing
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import binom, norm

import fedprivjax as fpj
from fedprivjax import Assumption, PrivacyGuarantee, Refusal
from fedprivjax.plan.participation import PoissonCohorts, SecretSubsets
from fedprivjax.plan.samplers import Poisson, Replacement, Reshuffled, Subset
from fedprivjax.plan.samplers.minibatch import RAREST
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants.groups import group_epsilon, group_occurrences
from fedprivjax.privacy.accountants.records import Sampled, Shuffled
from fedprivjax.privacy.accountants.sampled import SampledReleases, sampled_epsilon
from fedprivjax.privacy.curve import SUMMED, GaussianCurve, GroupCurve, spread
from fedprivjax.privacy.record_event import RecordEvent, Releases
from fedprivjax.privacy.relations import ADD_OR_REMOVE, REPLACE_ONE
from fedprivjax.privacy.terms import Terms

DELTA = 1e-5
BOTH = [ADD_OR_REMOVE, REPLACE_ONE]
MUS = fpj.Grouped.of([1.0])


def event(sampler, relation=REPLACE_ONE, *, shift=1.0, messages=2, noise_std=1.0, trust="none", **settings):
    """Event of machines with 20 records each, of which the first has the largest shift and number of messages."""
    releases = Releases.of(np.atleast_1d(shift), 20, sampler.batch_of(20), messages)
    accountant = Sampled(sampler, relation=relation, **settings)
    return RecordEvent(noise_std, accountant, releases, Terms(trust, "a theorem", relation=relation))


def dp_sgd(records=1400, rounds=100, multiplier=2.0, **settings):
    """Guarantee of DP-SGD on one machine, at the sampling rate 1/14."""
    table = np.arange(records).reshape(1, records)
    problem = fpj.from_dataset(fpj.datasets.load("digits"), partition_table=table)
    known = {"clip": 1.0, "batch": 100, "sampler": "poisson", "step_size": 0.5, "noise_std": multiplier / 100}
    method = fpj.NoisyMinibatchSGD(**known | settings)
    return fpj.ready(method, problem, fpj.Full(1), rounds=rounds, delta=DELTA).guarantee


ADDED = {"rate": 1 / 14, "relation": ADD_OR_REMOVE}

# ---- quadrature


def densities(messages, relation, points=1401):
    """Probabilities of the cells of a grid for messages under both datasets; arrays of shape [messages, cells].

    A message is its largest shift, and the probabilities of 0, 1, 2, … occurrences. By post-processing, δ(ε) of the
    cells is below that of the densities, so no error of the grid refutes a true bound.
    """
    edges = np.linspace(-14, 14, points)

    def density(shift, chances, sign):
        return sum(chance * np.diff(norm.cdf(edges - sign * j * shift)) for j, chance in enumerate(chances))

    other = 0 if relation == ADD_OR_REMOVE else -1
    return [[density(*one, sign) for one in messages] for sign in (1, other)]


def delta_of(one, other, epsilon):
    """δ(ε) of independent messages in the worse direction, by a sum over the product grid."""

    def joint(each):
        found = each[0]
        for further in each[1:]:
            found = np.multiply.outer(found, further)
        return found

    first, second = joint(one), joint(other)
    return max(np.maximum(p - np.exp(epsilon) * q, 0).sum() for p, q in ((first, second), (second, first)))


def pmf(size, rate):
    return [comb(size, j) * rate**j * (1 - rate) ** (size - j) for j in range(size + 1)]


@pytest.mark.parametrize("relation", BOTH)
@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_bound_holds_by_quadrature_and_one_record_fewer_is_refuted(relation, rounds, size):
    shift, rate, delta = 0.7, 0.2, 1e-3
    pair = densities([(shift, pmf(size, rate))] * rounds, relation)
    stated, fewer = (group_epsilon(shift, rate, k, rounds, relation, delta) for k in (size, size - 1))
    assert delta_of(*pair, stated) <= delta * (1 + 1e-9)
    assert delta_of(*pair, stated * 0.999) > delta  # it is exact, not only a bound
    assert delta_of(*pair, fewer) > 1.5 * delta


@pytest.mark.parametrize("relation", BOTH)
@pytest.mark.parametrize("size", [2, 3])
def test_no_vectors_of_a_group_are_above_its_pair(relation, size):
    """Records of other directions and lengths, in two dimensions."""
    rng, rate, shift = np.random.default_rng(size), 0.3, 0.8
    axis, width = np.linspace(-9, 9, 181, retstep=True)
    plane = np.stack(np.meshgrid(axis, axis), axis=-1)

    def density(vectors):
        sets = list(product([0, 1], repeat=size))
        chance = [rate ** sum(one) * (1 - rate) ** (size - sum(one)) for one in sets]
        means = [np.array(one) @ vectors for one in sets]
        parts = zip(chance, means, strict=True)
        return sum(p * np.exp(-((plane - mean) ** 2).sum(-1) / 2) for p, mean in parts) * width**2 / (2 * np.pi)

    largest = np.tile([shift, 0.0], (size, 1))
    epsilons = 0.3, 1.0, 2.0
    worst = [delta_of([density(largest)], [density(-largest * (relation == REPLACE_ONE))], e) for e in epsilons]
    for _ in range(3):
        vectors, others = rng.normal(size=(2, size, 2))
        vectors *= shift * rng.uniform(0.5, 1, (size, 1)) / np.linalg.norm(vectors, axis=1, keepdims=True)
        others *= (relation == REPLACE_ONE) * shift / np.linalg.norm(others, axis=1, keepdims=True)
        found = [delta_of([density(vectors)], [density(others)], e) for e in epsilons]
        assert (np.array(found) <= np.array(worst) * (1 + 1e-9)).all()


@pytest.mark.parametrize("relation", BOTH)
@pytest.mark.parametrize(
    "split", [(1, 1), (2, 1), *(pytest.param(one, marks=pytest.mark.slow) for one in [(1, 2), (3, 0), (0, 3)])]
)
def test_no_split_over_machines_is_above_all_records_on_one(relation, split):
    """Machines send 2 and 1 messages: with noise of their own, or in a server's sums, where counts add."""
    rate, shift, delta = 0.25, 0.9, 1e-2
    separate = [(shift, pmf(split[0], rate))] * 2 + [(shift, pmf(split[1], rate))]
    messages = [one for one in separate if len(one[1]) > 1]
    sums = [(shift, pmf(sum(split), rate)), (shift, pmf(split[0], rate))][: 1 + (split[0] > 0)]
    stated = group_epsilon(shift, rate, sum(split), 2, relation, delta)
    for each in (messages if len(messages) < 3 else None, sums):
        if each is not None:
            assert delta_of(*densities(each, relation), stated) <= delta * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("relation", BOTH)
@pytest.mark.parametrize("split", [(1, 1), (2, 1), (1, 2)])
def test_no_split_of_three_messages_is_above_all_records_on_one(relation, split):
    rate, shift, delta = 0.25, 0.9, 1e-2
    messages = [(shift, pmf(split[0], rate))] * 2 + [(shift, pmf(split[1], rate))]
    stated = group_epsilon(shift, rate, sum(split), 2, relation, delta)
    assert 0 < delta_of(*densities(messages, relation, 181), stated) <= delta


# ---- numbers


@pytest.mark.slow
def test_users_of_dp_sgd_keep_the_delta():
    one = dp_sgd(**ADDED)
    for size, expected in ((2, 3.539), (4, 7.984), (8, 19.01)):
        group, user = one.for_group(size, exact=True), one.for_user(size)
        assert group.epsilon == pytest.approx(expected, rel=1e-3)
        assert group.epsilon == user.epsilon < GroupCurve(one.curve, size).epsilon(DELTA)
        assert group.delta == user.delta == DELTA
    text = group.paragraph()
    assert "any 8 of: one record of one machine" in text
    assert "mixtures of Gaussians for groups" in text
    assert "the mixture pair of Binomial(8, rate) added members" in text
    assert Assumption("group samples", {"size": 8}) in group.assumptions
    assert str(PrivacyGuarantee.from_json(group.to_json())) == str(group)
    assert one.for_group(2).for_group(4).epsilon == group.epsilon
    assert one.for_group(1).epsilon == one.epsilon


@pytest.mark.parametrize(
    ("z", "rate", "rounds", "delta"),
    [(2, 1 / 14, 100, 1e-5), pytest.param(0.7, 0.03, 50, 1e-7, marks=pytest.mark.slow)],
)
def test_mixtures_of_dp_accounting(z, rate, rounds, delta):
    size = 3
    sizes = np.arange(size + 1)
    mixture = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        z, sizes, binom.pmf(sizes, size, rate), value_discretization_interval=5e-3
    )
    theirs = mixture.self_compose(rounds).get_epsilon_for_delta(delta)
    assert group_epsilon(1 / z, rate, size, rounds, ADD_OR_REMOVE, delta) == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize("relation", BOTH)
@pytest.mark.parametrize(
    ("z", "rate", "rounds", "delta"),
    [
        (1, 0.05, 100, 1e-3),
        (0.5, 0.5, 1, DELTA),
        pytest.param(50, 0.5, 10**5, 1e-10, marks=pytest.mark.slow),
        pytest.param(1, 0.004, 500, 1e-6, marks=pytest.mark.slow),
    ],
)
def test_one_record_is_the_plain_bound_and_epsilon_grows(relation, z, rate, rounds, delta):
    plain = sampled_epsilon(z, SampledReleases(Poisson(1, rate=rate), 10, rounds, delta, relation=relation))

    def epsilon(size=1, shift=1 / z, rate=rate, rounds=rounds):
        return group_epsilon(shift, rate, size, rounds, relation, delta)

    assert epsilon() == pytest.approx(plain, rel=2e-3)
    larger = [epsilon(2), epsilon(3), epsilon(4)]
    assert plain < larger[0] < larger[1] < larger[2]
    assert (
        max(epsilon(2, shift=0.9 / z), epsilon(2, rate=0.9 * rate), epsilon(2, rounds=max(1, rounds // 2))) <= larger[0]
    )


def test_groups_without_secret_samples_and_with_many_messages():
    stated = event(Reshuffled(10)).guarantee(DELTA)
    alone = event(Reshuffled(10), noise_std=1 / 3).guarantee(DELTA)
    assert stated.for_group(3, exact=True).epsilon == pytest.approx(alone.epsilon, rel=1e-7)
    assert "2 records change together" in stated.for_user(2).accounting


# ---- machines


def test_records_on_several_machines_have_the_largest_values():
    """Machines differ in their shift and messages: each has less alone than the group has on all."""
    several = event(Poisson(5, rate=0.25), shift=[1.0, 0.5, 0.1], messages=[1, 3, 0]).guarantee(DELTA)
    user, group = several.for_user(3), several.for_group(3)
    bound = group_epsilon(0.5, 0.25, 3, 3, REPLACE_ONE, DELTA)
    assert group.per_machine == pytest.approx([bound] * 3, rel=1e-6)
    assert user.epsilon < bound
    assert user.per_machine[2] == 0


def test_groups_of_machines_in_secret_cohorts():
    scheme = PoissonCohorts(100, rate=0.1)
    table = np.arange(1400).reshape(100, 14)
    problem = fpj.from_dataset(fpj.datasets.load("digits"), partition_table=table)
    known = {"unit": "machine", "trust": "server", "local_steps": 1, "batch": 1, "step_size": 0.1}
    method = fpj.FedAvg(noise_std=0.2, update_clip=1.0, relation=ADD_OR_REMOVE, **known)
    stated = fpj.ready(method, problem, scheme, rounds=20, delta=DELTA).guarantee
    group = stated.for_group(3, exact=True)
    z = stated.event.noise_std / stated.event.sensitivity
    assert group.epsilon == pytest.approx(group_epsilon(1 / z, 0.1, 3, 20, ADD_OR_REMOVE, DELTA), rel=1e-4)
    assert "zero-out" in str(group)
    assert "secret cohorts of machines" in group.accounting
    subsets = fpj.ready(method.replace(relation=REPLACE_ONE), problem, SecretSubsets(100, 10), rounds=20, delta=DELTA)
    with pytest.raises(Refusal, match="for an exact guarantee with the sampler 'subset', got 3"):
        subsets.guarantee.for_group(3, exact=True)


# ---- refusals


def saved():
    return PrivacyGuarantee.from_json(event(Poisson(5)).guarantee(DELTA).to_json())


@pytest.mark.parametrize(
    ("guarantee", "message"),
    [
        (lambda: event(Subset(5)).guarantee(DELTA), "with the sampler 'subset', got 2. Use Poisson samples"),
        (lambda: event(Replacement(5)).guarantee(DELTA), "with the sampler 'replacement', got 2"),
        (lambda: event(Poisson(5), whole_message=True).guarantee(DELTA), "with messages that are clipped as a whole"),
        (
            lambda: event(Poisson(5), shift=[1.0, 2.0], trust="server").guarantee(DELTA),
            "trust must be 'none' for an exact group on several machines, got 'server'",
        ),
        (saved, "event and relation must be the run's for an exact guarantee of groups"),
    ],
)
def test_groups_without_an_exact_guarantee_are_refused_or_general(guarantee, message):
    stated = guarantee()
    with pytest.raises(Refusal, match=message):
        stated.for_group(2, exact=True)
    noisy = PrivacyGuarantee(1e-9, stated.terms, epsilons=stated.epsilons.map(lambda each: 0 * each + 0.5))
    assert noisy.for_group(2).epsilon == 1.0


def test_shufflers_and_too_large_groups_are_refused():
    shuffled = RecordEvent(9.0, Shuffled(1000), Releases.of([1.0], 10, 1, 5), Terms("shuffler", "a theorem"))
    with pytest.raises(Refusal, match="accountant must be of Poisson samples for an exact group, got Shuffled"):
        shuffled.for_group(2)
    one = event(Poisson(5), noise_std=0.5).guarantee(DELTA)
    with pytest.raises(Refusal, match=r"^size must be at most 41, for a finite ε at δ = 1e-05, got 300$"):
        one.for_group(300, exact=True)
    with pytest.raises(Refusal, match=r"^records must be at most 41, for a finite ε at δ = 1e-05, got 300$"):
        one.for_user(300)
    assert one.for_user(41).epsilon < np.inf


@pytest.mark.parametrize("size", [10**6 + 1, 10**9, 10**30])
def test_huge_groups_have_the_general_bound_at_once(size):
    one = event(Poisson(2))
    with pytest.raises(Refusal, match=f"^size of a group must be at most 1000000 for an exact guarantee, got {size}"):
        one.for_group(size)
    guarantee = PrivacyGuarantee(DELTA, one.terms, epsilons=one.epsilons(DELTA), event=one)
    with pytest.raises(Refusal, match=rf"^size must be at most \d+, for a δ below 1 at ε = [\d.]+, got {size}$"):
        guarantee.for_group(size)


def test_sizes_beyond_floating_point_are_refused():
    one, gaussian = event(Poisson(2)).guarantee(DELTA), PrivacyGuarantee(DELTA, Terms("none", "a theorem"), mus=MUS)
    for guarantee in (one, gaussian, event(Poisson(20)).guarantee(DELTA)):
        for size, got in ((10**400, "about 10^400"), (10**5000, "about 10^5000")):
            for function, name in ((guarantee.for_group, "size"), (guarantee.for_user, "records")):
                with pytest.raises(Refusal, match=rf"^{name} must be at most 1e\+100, got {re.escape(got)}$"):
                    function(size)
    assert gaussian.for_group(10**100).epsilon > 1e199
    whole = event(Poisson(20)).guarantee(DELTA)
    assert whole.for_group(10**50).for_group(10**50).epsilon > 1e199
    with pytest.raises(Refusal, match=r"^size of a group must be at most 1e\+100"):
        whole.for_group(10**100).for_group(10**100, exact=True)


SHORT = [(np.uint8, 20), (np.int8, 64), (np.int8, 127), (np.uint8, 200)]


@pytest.mark.parametrize(("kind", "size"), sparing(SHORT, SHORT[:2]))
def test_short_integers_of_numpy_do_not_overflow_in_a_groups_size(kind, size):
    for one in (event(Poisson(20), noise_std=100.0), event(Poisson(2), noise_std=1000.0)):
        expected = one.guarantee(DELTA).for_group(size).for_group(size).epsilon
        assert expected > 0.1
        assert one.guarantee(DELTA).for_group(kind(size)).for_group(kind(size)).epsilon == expected
        assert one.for_group(kind(size)).for_group(kind(size)).epsilon(DELTA) == expected
        assert one.guarantee(DELTA).for_user(kind(size)).for_group(kind(size)).epsilon == expected


@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 1e-7, 1e-3, 0.02])
def test_the_closed_form_of_general_group_privacy_is_above_the_sum_and_close(epsilon):
    size = SUMMED + 1
    exact = 1e-9 * fsum(exp(j * epsilon) for j in range(size))
    assert exact <= spread(epsilon, 1e-9, size) <= exact * (1 + 1e-11)


@pytest.mark.parametrize(("rate", "size"), [(1e-4, 1000), (0.3, 1), (0.3, 50), (0.5, 3), (0.99, 20_000)])
def test_only_rare_numbers_of_a_group_are_left_out(rate, size):
    times, chances = group_occurrences(rate, size)
    every = np.arange(1, size + 1)
    kept = 1 + np.count_nonzero(binom.sf(every, size, rate) > RAREST)
    np.testing.assert_array_equal(times, every[:kept])
    np.testing.assert_array_equal(chances, binom.pmf(every[:kept], size, rate))


def test_a_group_whose_losses_are_all_infinite_has_no_bound():
    assert group_epsilon(100.0, 0.9, 1000, 1, REPLACE_ONE, DELTA) == np.inf


def test_a_replaced_record_is_not_two_added_ones():
    one = event(Poisson(5, rate=0.25), ADD_OR_REMOVE, noise_std=3.0).guarantee(DELTA)
    replaced = one.for_relation(REPLACE_ONE)
    exact = group_epsilon(1 / 3, 0.25, 1, 2, REPLACE_ONE, replaced.delta)
    assert one.for_group(2).delta_at(exact) > 0
    assert replaced.epsilon >= exact
    assert replaced.epsilon == pytest.approx(2 * one.epsilon)


@pytest.mark.parametrize("known", ["mu", "event", "file", "gaussian file"])
def test_users_of_each_machine_have_the_guarantee_of_their_own_number(known):
    shifts = np.array([1.0, 0.5, 0.2])
    one = event(Poisson(2), ADD_OR_REMOVE, shift=shifts, messages=np.full(3, 2), noise_std=8.0).guarantee(DELTA)
    if known == "mu":
        one = PrivacyGuarantee(DELTA, one.terms, mus=fpj.Grouped.of(shifts))
    if known == "file":
        one = PrivacyGuarantee.from_json(one.to_json())
    if known == "gaussian file":
        epsilons = fpj.Grouped.of([gdp.epsilon(mu, DELTA) for mu in shifts])
        one = PrivacyGuarantee(DELTA, one.terms, epsilons=epsilons, listed=GaussianCurve(1.0))
    sizes = [2, 1, 4]
    loop = [one.for_user(size) for size in sizes]
    found = one.for_user(sizes)
    assert found.per_machine.tolist() == [part.per_machine[machine] for machine, part in enumerate(loop)]
    assert found.delta == max(part.delta for part in loop)
    assert 1 <= found.epsilon_at(found.delta) / found.epsilon < 1 + 1e-6
    assert (found.curve.mu is not None) == (known in ("mu", "gaussian file"))
    assert found.unit == "one user, who holds at most 1 to 4 records of one machine, a number for each machine"
    assert found.accounting.endswith("and likewise for the numbers of other machines")
    assert PrivacyGuarantee.from_json(found.to_json()).epsilon == pytest.approx(found.epsilon)
    assert np.array_equal(one.for_user(np.array([2, 2, 2], np.uint8)).per_machine, one.for_user(2).per_machine)
    assert one.for_user(1).unit == "one user, who holds at most 1 record of one machine"
    with pytest.raises(Refusal, match=r"one for each of 3 machines, \[3\], got the shape \[2\]"):
        one.for_user([1, 2])
    with pytest.raises(Refusal, match="records must be at least 1, got 0"):
        one.for_user([1, 2, 0])
    with pytest.raises(Refusal, match=r"records must be an integer, got 2\.5"):
        one.for_user([1, 2, 2.5])
