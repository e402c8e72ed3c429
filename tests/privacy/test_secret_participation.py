"""Secret participation: refusals, nothing printed or saved that tells who took part, and rounds without a machine."""

import numpy as np
import pytest
from cases import COMPILED, MACHINES, SHARES
from dp_fedavg import dp_fedavg
from secret_fedavg import HandWrittenUpdates, PublicUpdates, SecretUpdates, StillPublic

from fedprivjax import (
    DPMu2,
    Dropouts,
    FedAvg,
    Federation,
    Full,
    NoisySGD,
    PoissonCohorts,
    Refusal,
    SecretSubsets,
    Seeds,
    Uniform,
    Varying,
    audit,
    audit_one_run,
    check_protocol,
    draw_plan,
    guarantee,
    ready,
    simulate,
    sweep,
    transcript,
)
from fedprivjax.method.seen import costs_of
from fedprivjax.plan.samplers import Subset
from fedprivjax.testing import PROPERTIES

TENTH, HALF, PAIRS = PoissonCohorts(MACHINES, 0.1), PoissonCohorts(MACHINES, 0.5), SecretSubsets(MACHINES, 2)
PUBLIC = Full(MACHINES), Uniform(MACHINES, 2), Varying.binomial(MACHINES, 0.5), Dropouts(Full(MACHINES), 0.5)
ROUNDS = 8


def begun(protocol, scheme, participation=0, **options):
    options = {"metrics": (), "rounds": ROUNDS} | options
    return ready(protocol, SHARES, scheme, seed=Seeds(participation, 0, 0), **options)


@pytest.mark.parametrize("scheme", PUBLIC)
def test_an_amplified_event_over_a_public_schedule_is_refused(scheme):
    """Planted fault "secret for public": an event with q = 0.1 on a schedule that everybody knows."""
    message = (
        r"participation must be PoissonCohorts\(machines=4, rate=0\.1\) for LocalGradientSteps.*got a public schedule"
    )
    with pytest.raises(Refusal, match=message):
        begun(dp_fedavg(SecretUpdates, noise_std=1.0, claims=TENTH), scheme)
    plan = draw_plan(SHARES, scheme, ROUNDS, sampler=Subset(3))
    with pytest.raises(Refusal, match="got a public schedule"):
        guarantee(dp_fedavg(SecretUpdates, noise_std=1.0, claims=TENTH), SHARES, plan)
    with pytest.raises(Refusal, match="got a public schedule"):
        begun(dp_fedavg(SecretUpdates, epsilon=2.0, claims=TENTH), scheme)


@pytest.mark.parametrize("scheme", [Full(MACHINES), Uniform(MACHINES, 2)])
def test_a_hand_written_event_with_sampled_releases_is_refused_on_a_public_schedule(scheme):
    with pytest.raises(Refusal, match="must name a secret scheme if its releases are sampled by machine, got None"):
        begun(dp_fedavg(HandWrittenUpdates, noise_std=1.0), scheme)
    begun(dp_fedavg(noise_std=1.0), scheme)


@pytest.mark.parametrize("claims", [TENTH, PAIRS])
def test_an_event_amplified_by_another_scheme_is_refused(claims):
    with pytest.raises(
        Refusal, match=r"participation must be .* for LocalGradientSteps.*got PoissonCohorts\(.*rate=0\.5\)"
    ):
        begun(dp_fedavg(SecretUpdates, noise_std=1.0, claims=claims), HALF)


@pytest.mark.parametrize("scheme", [HALF, PAIRS])
def test_a_method_that_does_not_account_for_secret_participation_is_refused(scheme):
    message = r"participation must be public for .*does not account.*Use Full, Uniform, .* or BySize"
    for protocol in (dp_fedavg(PublicUpdates, noise_std=1.0), dp_fedavg(PublicUpdates, epsilon=2.0)):
        with pytest.raises(Refusal, match=message):
            begun(protocol, scheme)


@pytest.mark.parametrize("scheme", [HALF, PAIRS, Dropouts(HALF, 0.1)])
def test_no_trusted_server_is_refused(scheme):
    with pytest.raises(Refusal, match=r"trust must be 'server' under secret participation, because .*, got 'none'"):
        begun(NoisySGD(noise_std=1.0, clip=1.0, step_size=0.1), scheme, order="cyclic")
    with pytest.raises(Refusal, match=r"trust must be 'server' under secret participation, because .*, got 'none'"):
        begun(FedAvg(local_epochs=1, step_size=0.1, unit="record", clip=1.0, epsilon=2.0), scheme)
    with pytest.raises(Refusal, match=r"trust must be 'server' under secret participation"):
        begun(dp_fedavg(SecretUpdates, noise_std=1.0, trust="none"), scheme)


@pytest.mark.parametrize("scheme", [HALF, PAIRS])
def test_a_baseline_without_noise_runs_and_guarantees_nothing(scheme):
    for protocol in (FedAvg(local_epochs=1, step_size=0.1), dp_fedavg(PublicUpdates, noise_std=0.0)):
        found = begun(protocol, scheme).guarantee
        assert not found.private
        assert found.epsilon == np.inf
        assert "participation is public" not in str(found)


def test_an_event_that_assumes_public_participation_is_refused():
    """Planted: secret participation claimed, and public participation among the printed assumptions."""
    with pytest.raises(
        Refusal, match=r"assumptions of LocalGradientSteps's event must not say 'participation is public and"
    ):
        begun(dp_fedavg(StillPublic, noise_std=1.0), HALF)


def test_records_used_once_are_refused():
    with pytest.raises(Refusal, match="participation must be public if a machine uses every record once"):
        ready(DPMu2(mu=1.0, clip=1.0, trust="server"), SHARES, HALF, rounds=2)


def test_audits_that_would_show_who_took_part_are_refused():
    with pytest.raises(
        Refusal,
        match=r"participation must be public for an audit in one run, got .* Use fedprivjax.audit \(on",
    ):
        audit_one_run(dp_fedavg(SecretUpdates, noise_std=1.0), SHARES, HALF, rounds=4)
    with pytest.raises(Refusal, match="participation must be public in an audit with dropouts"):
        audit(dp_fedavg(SecretUpdates, noise_std=1.0), Federation(Dropouts(HALF, 0.5), 2, 6), runs=1000)


@pytest.mark.parametrize("scheme", [HALF, PAIRS, Dropouts(PAIRS, 0.5)])
def test_all_that_is_printed_of_a_run_is_the_same_for_all_cohorts(scheme):
    starts = [begun(dp_fedavg(SecretUpdates, epsilon=2.0), scheme, participation=seed) for seed in (1, 2)]
    one, other = (start.plan.schedule for start in starts)
    assert not np.array_equal(one.present * (1 + one.participants), other.present * (1 + other.participants))
    said = [
        (
            repr(start),
            str(start.plan),
            start.plan.data_used,
            start.guarantee.to_json(),
            str(start.guarantee),
            start.published.delta_warning,
            start.published.weights,
            repr(start.costs),
        )
        for start in starts
    ]
    assert said[0] == said[1]
    assert "secret" in said[0][4]


def test_costs_are_expected_values():
    for scheme, mean in ((HALF, 2.0), (PAIRS, 2.0), (Dropouts(PAIRS, 0.25), 1.5)):
        start = begun(dp_fedavg(SecretUpdates, noise_std=1.0), scheme)
        each = costs_of(start.protocol).costs(SHARES)
        np.testing.assert_allclose(start.costs["sent_bytes"], ROUNDS * mean / MACHINES * each["sent_bits"] / 8)
    public = begun(dp_fedavg(PublicUpdates, noise_std=1.0), Uniform(MACHINES, 2)).costs
    assert begun(dp_fedavg(SecretUpdates, noise_std=1.0), PAIRS).costs == pytest.approx(public, nan_ok=True)


def test_a_transcript_shows_the_public_part_of_the_plan():
    seen = [
        transcript(dp_fedavg(SecretUpdates, noise_std=1.0), SHARES, HALF, rounds=4, seed=Seeds(seed, 0, 0))
        for seed in (1, 2)
    ]
    for one in seen:
        assert (one.messages, one.steps, one.internal) == (None, None, ())
        assert one.plan.schedule.participants.size == one.plan.samples.size == 0
        assert one.plan.schedule.filled is one.plan.schedule.dropped is None
    assert str(seen[0].plan) == str(seen[1].plan)


@pytest.mark.slow
def test_saved_results_differ_between_seeds_in_metrics_only():
    """Metrics of rounds, such as the norm of its messages, are listed as non-private."""
    protocol = dp_fedavg(SecretUpdates, step_size=0.1)
    data = sweep(
        protocol, SHARES, HALF, over={"epsilon": [2.0]}, seeds=4, rounds=ROUNDS, metrics=["train_loss", "norm"]
    )
    assert len(np.unique(data["norm"])) > 1
    assert data.attrs["non_private_metrics"] == "train_loss, norm"
    assert "data_used" not in data.attrs
    public = data.drop_vars(["train_loss", "norm", "diverged", "seconds"], errors="ignore")
    for name, values in public.data_vars.items():
        if "seed" in values.dims:
            assert (values.isnull() | (values == values.isel(seed=0))).all(), name
            assert values.isnull().all() or values.notnull().all(), name


def test_rounds_without_a_machine_release_noise():
    """Nearly all rounds are empty: steps are noise of the stated scale, and not 2/3 or 3/2 of it."""
    rare = PoissonCohorts(MACHINES, 0.01)
    run = transcript(dp_fedavg(SecretUpdates, noise_std=0.01), SHARES, rare, rounds=60)
    empty = ~begun(dp_fedavg(SecretUpdates, noise_std=0.01), rare, rounds=60).plan.schedule.present.any(axis=1)
    steps = np.diff(np.asarray(run.queries, float), axis=0)[empty[:-1]]
    assert np.count_nonzero(empty) > 40
    assert np.isfinite(run.queries).all()
    spread = steps.std() / 0.01
    error = 1 / np.sqrt(2 * steps.size)
    assert abs(spread - 1) < 4 * error
    assert all(abs(scale * spread - 1) > 4 * error for scale in (2 / 3, 3 / 2))


def test_a_run_with_empty_rounds_is_finite():
    run = simulate(
        dp_fedavg(SecretUpdates, noise_std=0.01), SHARES, TENTH, rounds=ROUNDS, metrics=["train_loss", "norm"]
    )
    assert (run.plan.schedule.filled == 0).any()
    assert not run.diverged
    assert run.non_private_metrics == ("train_loss", "norm")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [TENTH, HALF, PAIRS])
def test_the_whole_contract_holds(scheme):
    protocol = dp_fedavg(SecretUpdates, noise_std=0.15)
    properties = PROPERTIES if scheme is TENTH else COMPILED
    report = check_protocol(protocol, problem=SHARES, participation=scheme, properties=properties)
    assert set(report.held) == set(properties)
