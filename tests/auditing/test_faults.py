"""Every planted fault is flagged by its row's detector, and the correct counterparts are not flagged.

The total error probability of all rows is 1e-4, divided equally. An audit divides a row's among its scores, and a
distribution test among the entries of a covariance. Brute force and accountants are deterministic up to rounding.
"""

import jax
import pytest
from cases import sparing
from faults.rows import FAULTS
from noise_distributions import misfit
from scipy.special import ndtri

from fedprivjax.auditing.audit import VERDICT, Audit, audit
from fedprivjax.testing import check_protocol

LEVEL = VERDICT / len(FAULTS)
ROUNDING = 1e-3  # relative, of an ε from dp-accounting or of a norm


def seen_by_audit(subject) -> bool:
    return bool(audited(subject).refuted)


def audited(subject) -> Audit:
    protocol, federation, runs, delta, public = subject
    return audit(protocol, federation, runs=runs, delta=delta, public=public, verdict=LEVEL)


def seen_by_distribution(subject) -> bool:
    entries = subject.covariance.size
    return misfit(subject.draw(), subject.covariance) > -ndtri(LEVEL / entries / 2)


def found_larger(subject) -> bool:
    found, claimed = subject.found(), subject.claimed()
    print(f"claimed {claimed!r}, found {found!r}")
    return found > claimed * (1 + ROUNDING)


def fails_contract(subject) -> bool:
    try:
        check_protocol(subject.protocol, subject.problem, properties=[subject.fails])
    except AssertionError:
        return True
    return False


DETECTORS = {
    "audit": seen_by_audit,
    "distribution": seen_by_distribution,
    "sensitivity": found_larger,
    "accountant": found_larger,
    "contract": fails_contract,
}
QUICK = [
    *("half the noise", "participation by data", "a metric released", "nothing taken back", "drawn anew"),
    *("a level missing", "G for S", "clipped by coordinate", "exposure above 1", "δ in every round"),
    *("slots counted", "a round's own number", "the first message's norm", "a step without its factor"),
    *("one release's support", "bits rounded down", "epochs rounded down", "noise of those who send"),
    *("a bit without noise", "z for z_Δ", "noise of the first clip", "the cohort's own number"),
    *("one order of epochs", "infinite losses dropped", "senders named", "random levels"),
    *("the last batch's own length", "a control without noise", "one key of a machine and its encoder"),
]


@pytest.mark.parametrize("name", sparing(list(FAULTS), QUICK))
def test_a_fault_is_flagged_by_its_detector(name):
    fault = FAULTS[name]
    assert DETECTORS[fault.detector](fault.faulty), fault.change


def different_subjects():
    """Return one row per correct input and detector."""
    first: dict = {}
    for name, fault in FAULTS.items():
        first.setdefault((fault.detector, repr(fault.right)), name)
    return list(first.values())


LONG = ("half the noise", "the cohort's own number", "the last batch's own length")


@pytest.mark.parametrize(
    "name", sparing(different_subjects(), [n for n in QUICK if n in different_subjects() and n not in LONG])
)
def test_the_same_without_the_fault_is_not_flagged(name):
    fault = FAULTS[name]
    assert not DETECTORS[fault.detector](fault.right), described(fault)


def described(fault) -> str:
    """Return a row's change, for an audit with its findings now and after recompilation, since seeds are fixed."""
    if fault.detector != "audit":
        return fault.change
    again = str(audited(fault.right))
    jax.clear_caches()
    return "\n".join([fault.change, again, str(audited(fault.right))])


def test_the_catalogue_is_long_and_of_both_kinds():
    assert len(FAULTS) >= 50
    assert {fault.kind for fault in FAULTS.values()} == {"leak", "noise fault"}
    assert {fault.detector for fault in FAULTS.values()} == set(DETECTORS)
