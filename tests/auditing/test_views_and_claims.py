"""Views and claims that an audit compares."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from restating import buggy, planted, unsealed

from fedprivjax import NoisyMessages, NoisySGD, Refusal
from fedprivjax.auditing.audit import audit
from fedprivjax.auditing.canary_search import for_replaced
from fedprivjax.privacy import PrivacyGuarantee
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.relations import ADD_OR_REMOVE, REPLACE_ONE
from fedprivjax.privacy.terms import Terms

RUNS = 1000


def with_a_quiet_average(self, problem, state, inputs, noise, key):
    """Return the state after a round, whose average is without noise and is reported in addition to the output."""
    noisy, info = NoisySGD.round(self, problem, state, inputs, noise, key)
    silent = jax.tree.map(jnp.zeros_like, noise)
    average = state._replace(server=state.server._replace(w=state.server.average))
    quiet, _ = NoisySGD.round(self, problem, average, inputs, silent, key)
    return noisy._replace(server=noisy.server._replace(average=quiet.server.w)), info


def one_record_more(private, facts, noise_std):
    """Return an event of an add-or-remove guarantee, which needs half the noise of replace-one."""
    event = NoisyMessages.event(private, facts, noise_std)
    terms = replace(event.terms, relation=ADD_OR_REMOVE)
    return replace(event, sensitivity=event.sensitivity / 2, terms=terms)


@pytest.mark.slow
def test_an_iterate_that_is_reported_is_seen():
    quiet = buggy(NoisySGD, round=with_a_quiet_average)
    assert "likelihood ratio" in audit(quiet(mu=1.0, trust="server"), runs=RUNS).refuted
    assert audit(NoisySGD(mu=1.0, trust="server", average=True), runs=RUNS).refuted == ()


@pytest.mark.slow
def test_a_guarantee_for_one_record_more_is_held_to_what_it_says_of_replaced_ones():
    found = audit(planted(NoisySGD(mu=1.0, trust="server"), unsealed(event=one_record_more)), runs=RUNS)
    assert (found.guarantee.mu, found.guarantee.relation) == (1.0, REPLACE_ONE)
    assert found.refuted == ()
    assert found.attained == pytest.approx(1.0, rel=0.05)


def test_a_mu_for_one_record_more_is_twice_that_for_replaced_ones():
    terms = Terms("none", "a theorem", relation=ADD_OR_REMOVE)
    replaced = for_replaced(PrivacyGuarantee(1e-5, terms, mus=Grouped.of([1.0])))
    assert (replaced.mu, replaced.relation) == (2.0, REPLACE_ONE)


def test_an_epsilon_for_one_record_more_is_not_audited_in_one_run():
    terms = Terms("none", "a theorem", relation=ADD_OR_REMOVE)
    with pytest.raises(
        Refusal, match=r"^relation must be 'replace-one' for an audit in one run of a guarantee without μ"
    ):
        for_replaced(PrivacyGuarantee(1e-5, terms, epsilons=Grouped.of([1.0])))
