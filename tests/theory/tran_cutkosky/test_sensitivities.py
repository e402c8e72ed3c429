"""Algorithm 2's sensitivities: never exceeded by adversarial gradients, and attained."""

import numpy as np
import pytest

from fedprivjax import Refusal
from fedprivjax.theory import tran_cutkosky as tc

RECORDS, EPOCHS, ALPHA, STEP, SMOOTH, LIPSCHITZ = 6, 9, 1 / 6, 0.1, 2.0, 1.5
SETTINGS = {"records": RECORDS, "step_size": STEP, "smoothness": SMOOTH}
PROBLEM = tc.ProblemConstants(records=RECORDS, dimension=1, lipschitz=LIPSCHITZ, smoothness=SMOOTH)


def moved(node, record, amount):
    """‖Σ (1−α)^{z−t}·(change at t)‖ if replacing a record changes each of its terms by twice `amount`, all parallel."""
    total = 0.0
    for t in range(node[0], node[1] + 1):
        if (t - 1) % RECORDS == record:
            total += 2 * (1 - ALPHA) ** (node[1] - t) * amount(t)
    return total


def worst(node, amount):
    return max(moved(node, record, amount) for record in range(RECORDS))


NODES = [(c * 2**k + 1, (c + 1) * 2**k) for k in range(6) for c in range(RECORDS * EPOCHS >> k)]


def test_residuals_are_exact_by_position():
    """With straight steps, the iterate at position p is pη from its anchor, and a record's gradient changes by L·pη."""
    for node in NODES:
        stated = tc.residual_sensitivity(first=node[0], last=node[1], alpha=ALPHA, **SETTINGS)
        found = worst(node, lambda t: SMOOTH * STEP * ((t - 1) % RECORDS))
        assert found == pytest.approx(stated, rel=1e-12, abs=1e-15)


def test_forms_against_all_nodes():
    forms = {f: tc.reduced_sensitivities(PROBLEM, step_size=STEP, form=f) for f in ("corrected", "short", "paper")}
    amounts = {
        "anchors": lambda _: LIPSCHITZ,
        "differences": lambda _: SMOOTH * STEP * RECORDS,
        "residuals": lambda t: SMOOTH * STEP * ((t - 1) % RECORDS),
    }
    for name, amount in amounts.items():
        long = max(worst(node, amount) for node in NODES)
        short = max(worst(node, amount) for node in NODES if node[1] - node[0] < RECORDS)
        assert short == pytest.approx(getattr(forms["short"], name))
        assert 0.6 * getattr(forms["corrected"], name) < long <= getattr(forms["corrected"], name)
        assert long > getattr(forms["paper"], name) or name == "anchors"  # the printed 2ηNL lacks the geometric factor


def test_differences_are_node_sensitivities():
    for node in NODES:
        share = tc.node_sensitivity(first=node[0], last=node[1], records=RECORDS, alpha=ALPHA)
        assert worst(node, lambda _: SMOOTH * STEP * RECORDS) == pytest.approx(2 * STEP * RECORDS * SMOOTH * share)


def test_refusals():
    with pytest.raises(Refusal, match="form"):
        tc.reduced_sensitivities(PROBLEM, step_size=STEP, form="mine")
    with pytest.raises(Refusal, match="alpha must be between"):
        tc.residual_sensitivity(first=1, last=8, alpha=0.1, **SETTINGS)
    with pytest.raises(Refusal, match="first must be at least 1"):
        tc.residual_sensitivity(first=0, last=8, alpha=0.5, **SETTINGS)


def test_federated():
    """The untrusted average has √M times the noise at the same multiplier; for one machine both are equal."""
    server, none = (tc.federated(machines=16, records=60, batch=5, trust=trust) for trust in ("server", "none"))
    assert server.epoch == none.epoch == 12
    assert none.sensitivity * none.noise == pytest.approx(4 * server.sensitivity * server.noise)
    alone = [tc.federated(machines=1, records=60, batch=5, trust=trust) for trust in ("server", "none")]
    assert alone[0] == alone[1]
    assert np.isclose(tc.federated(machines=2, records=9, batch=3, trust="server", lipschitz=3.0).sensitivity, 1.0)
    with pytest.raises(Refusal, match=r"records must be a multiple of batch \(7\), got 60"):
        tc.federated(machines=16, records=60, batch=7, trust="none")
    with pytest.raises(Refusal, match="trust"):
        tc.federated(machines=16, records=60, batch=5, trust="shuffler")
