"""Warnings of a δ above 1/n for a machine of n records: when a run is prepared, in its results and on their page."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from fedprivjax import DPMu2, Full, Squared, linear_problem, sweep
from fedprivjax.engine.prepare import ready
from fedprivjax.privacy.paragraph import large_delta
from fedprivjax.problem.problem import Table
from fedprivjax.report.page import not_covered

SIZES = (8, 12)
TABLE = np.where(np.arange(12) < np.array(SIZES)[:, None], np.arange(24).reshape(2, 12), -1)
PROBLEM = linear_problem(np.ones((24, 2)), np.zeros(24), Squared(1.0), feature_bound=2.0, partition_table=TABLE)
PRIVATE = DPMu2(mu=1.0, clip=1.0, step_size=0.1)
SAYS = r"delta exceeds 1/n on 1 of 2 machines, got 0\.1 where machine 1 has n = 12 records\. Set delta below 0\.083"


def test_a_sweep_warns_and_its_page_says_so():
    with pytest.warns(UserWarning, match=SAYS):
        found = sweep(PRIVATE, PROBLEM, Full(2), seeds=1, rounds=2, delta=0.1, metrics=["train_loss"])
    assert [line for line in not_covered({"mu2": found}) if line.startswith("Warning: delta exceeds 1/n on 1 of 2")]


@pytest.mark.parametrize(("protocol", "delta"), [(PRIVATE, 1 / 12), (PRIVATE.replace(mu=np.inf), 0.1)])
def test_a_small_delta_and_a_run_without_privacy_do_not(protocol, delta):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ready(protocol, PROBLEM, Full(2), rounds=2, delta=delta).published.delta_warning == ""


def test_records_of_a_pool_are_those_that_a_machine_uses():
    pooled = linear_problem(np.ones((24, 2)), np.zeros(24), Squared(1.0), feature_bound=2.0)
    with pytest.warns(UserWarning, match="on 2 of 2 machines, got 0.1 where machine 0 has n = 12 records"):
        ready(PRIVATE, pooled, Full(2), delta=0.1)
    assert large_delta(0.1, [10, 10]) == ""


def test_the_client_is_named():
    named = replace(PROBLEM, partition_table=Table(TABLE, ("north", "south")))
    with pytest.warns(UserWarning, match="got 0.1 where client 'south' has n = 12 records"):
        ready(PRIVATE, named, Full(2), rounds=2, delta=0.1)


def test_a_guarantee_of_all_records_of_a_machine_is_compared_with_the_number_of_machines():
    start = ready(PRIVATE, PROBLEM, Full(2), rounds=2)
    terms = replace(start.event.terms, unit="all records of one machine")
    machines = replace(start, delta=0.1, event=replace(start.event, terms=terms))
    assert replace(start, delta=0.1).published.delta_warning
    assert machines.published.delta_warning == replace(machines, delta=0.5).published.delta_warning == ""
    says = "delta exceeds 1/M, got 0.51 where M = 2 machines are protected one by one. Set delta below 0.5"
    assert replace(machines, delta=0.51).published.delta_warning == says
