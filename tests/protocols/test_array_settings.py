"""Settings given as arrays: 0-d arrays are numbers, and arrays with axes raise Refusal."""

from dataclasses import fields, replace

import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES

from fedprivjax import (
    Ball,
    DPMu2,
    Full,
    LocalSGD,
    Logistic,
    NoisyMinibatchSGD,
    Refusal,
    draw_plan,
    guarantee,
    linear_problem,
    simulate,
    sweep,
)
from fedprivjax.checks.numbers import numbers_in, with_numbers
from fedprivjax.engine.prepare import ready
from fedprivjax.plan.arguments import plain_numbers, require_protocol
from fedprivjax.privacy.calibration import calibrate
from fedprivjax.privacy.target import TARGETS
from fedprivjax.problem.problem import Table

PROTOCOLS = {
    f"{type(case.protocol).__name__}{', server' if getattr(case.protocol, 'server', None) else ''}": case.protocol
    for case in CASES.values()
}
VALUES = 0.0, 0.5, -1.0, np.nan, np.inf
HOST = {"delta"}  # numbers that only the host reads

X = np.random.default_rng(0).normal(size=(4, 6, 3))
POOL = linear_problem(X.reshape(-1, 3), (X[..., 0] > 0).astype(int).ravel(), Logistic(), constraint=Ball(1.0))
OWN = linear_problem(X, (X[..., 0] > 0).astype(int), Logistic(), constraint=Ball(1.0))


def outcome(make):
    """Text of the protocol with a setting, or the Refusal."""
    try:
        protocol = plain_numbers(make())
        require_protocol(protocol)
    except Refusal as refusal:
        return f"refused: {refusal}"
    return repr(vars(protocol))


@pytest.mark.parametrize("kind", [np.array, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_an_array_without_axes_is_the_number_that_it_holds(protocol, kind):
    names = numbers_in(protocol).keys() | (HOST & {field.name for field in fields(protocol)})
    names -= {name for name in names if name.endswith("_dtype")}
    for name in sorted(names):
        for value in VALUES:
            given = outcome(lambda name=name, value=value: with_numbers(protocol, {name: kind(value)}))
            number = outcome(lambda name=name, value=value: with_numbers(protocol, {name: value}))
            if not number.startswith("refused"):
                assert given == number, (name, value)
            else:
                assert given.startswith("refused"), (name, value)


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_an_array_with_axes_is_refused_by_setting_and_shape(protocol):
    for name in sorted(numbers_in(protocol).keys() - {"epsilon"}):
        others = {level: None for level in numbers_in(protocol) if level in TARGETS} if name in TARGETS else {}
        why = rf"\b{name.split('.')[-1]}\b.*(shape \(2,\)|must go with the form)"
        with pytest.raises(Refusal, match=why) as refused:
            require_protocol(with_numbers(protocol, {**others, name: np.array([1.0, 2.0])}))
        assert "\n" not in str(refused.value)


ENTRIES = {
    "ready": lambda protocol: ready(protocol, POOL, Full(4), rounds=2),
    "simulate": lambda protocol: simulate(protocol, POOL, Full(4), rounds=2),
    "sweep": lambda protocol: sweep(protocol, POOL, Full(4), rounds=2, seeds=1),
    "calibrate": lambda protocol: calibrate(protocol, POOL, draw_plan(POOL, Full(4), 2)),
    "guarantee": lambda protocol: guarantee(protocol, POOL, draw_plan(POOL, Full(4), 2)),
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_every_way_in_refuses_what_is_no_number(entry):
    with pytest.raises(Refusal, match=r"^mu must be positive, got 0\.0$"):
        entry(DPMu2(mu=np.array(0.0), clip=1.0))
    with pytest.raises(Refusal, match=r"^clip must be one number, got an array of shape \(2,\): .*"):
        entry(DPMu2(mu=2.0, clip=np.array([1.0, 2.0])))


@pytest.mark.parametrize("entry", [ENTRIES["ready"], ENTRIES["guarantee"]], ids=["ready", "guarantee"])
def test_a_protocol_of_arrays_has_the_guarantee_of_its_numbers(entry):
    given, number = entry(DPMu2(mu=jnp.array(2.0), clip=np.array(0.5))), entry(DPMu2(mu=2.0, clip=0.5))
    found = [getattr(one, "guarantee", one).epsilon for one in (given, number)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "protocol",
    [
        NoisyMinibatchSGD(noise_std=1.0, clip=1.0, batch=2, sampler="replacement", step_size=0.1),
        LocalSGD(noise_std=1.0, clip=1.0, batch=2, step_size=0.1),
    ],
    ids=["minibatches", "local steps"],
)
def test_a_machine_without_records_is_refused(protocol):
    rows = OWN.partition_table.rows.copy()
    rows[2] = -1
    problem = replace(OWN, partition_table=Table(rows))
    with pytest.raises(Refusal, match=r"^machines must have at least one record each, got none for machine 2\. Leave "):
        draw_plan(problem, Full(4), 3, sampler=protocol.minibatches)
