"""Precision of products: full by default, a setting, and always full for noise."""

import re
from dataclasses import replace

import jax
import numpy as np
import pytest

from fedprivjax import DPMu2, FedAvg, NoisySGD, Refusal, Uniform, experiment, ready
from fedprivjax.engine.simulate import run_program
from fedprivjax.experiment.jobs import jobs
from fedprivjax.method.seen import costs_of
from fedprivjax.plan.seeds import round_keys
from fedprivjax.problem.problem import Table
from fedprivjax.problem.program import TF32, products

SCHEME = Uniform(6, 3)


def precisions(text: str) -> set[str]:
    """Return the precisions of all products in the text of a program."""
    found = re.findall(r"stablehlo\.(?:dot_general|dot|convolution).*", text)
    return {name for line in found for name in re.findall(r"DEFAULT|HIGHEST|HIGH\b", line) or ["none"]}


@pytest.mark.parametrize(("precision", "name"), [("float32", "HIGHEST"), ("tf32", "HIGH")])
def test_products_of_a_run_have_its_precision(softmax_problem, precision, name):
    start = ready(NoisySGD(noise_std=0.0, step_size=0.1), softmax_problem, SCHEME, precision=precision)
    assert precisions(run_program.lower(start.arguments, start.static).as_text()) == {name}


MU2 = DPMu2(mu=1.0, clip=1.0)
UPDATES = FedAvg(unit="machine", mu=1.0, update_clip=1.0, step_size=0.1, local_steps=1, noise_schedule="tree")


@pytest.mark.parametrize(
    ("protocol", "method"),
    [
        *((MU2, name) for name in ("materialised", "replayed", "covariance")),
        *((replace(MU2, noise_schedule="toeplitz"), name) for name in ("materialised", "auto")),
        (UPDATES, "auto"),
    ],
)
def test_products_for_noise_are_in_full_precision(softmax_problem, protocol, method):
    table = Table(np.arange(60).reshape(6, 10)) if protocol is UPDATES else None
    problem = replace(softmax_problem, partition_table=table)
    start = ready(protocol, problem, SCHEME, rounds=4, noise_method=method, precision=TF32)
    mechanism, inputs, _, key = start.arguments[2:]
    dimension = costs_of(start.protocol).message_dimension(start.problem)

    def draw(mechanism, inputs, key):
        keys = round_keys(key, inputs.round)
        _, drawn = mechanism.draw(mechanism.init(dimension, key), mechanism.inputs, keys, dimension)
        memory = mechanism.message_memory(dimension, key)
        first = jax.tree.map(lambda leaf: leaf[0], mechanism.inputs)
        return drawn, mechanism.message_noise(memory, first, keys[0], dimension)

    with products(TF32):
        text = jax.jit(draw).lower(mechanism, inputs, key).as_text()
    assert precisions(text) <= {"HIGHEST"}


@pytest.mark.slow
def test_clipped_updates_are_summed_in_full_precision(softmax_problem):
    problem = replace(softmax_problem, partition_table=Table(np.arange(60).reshape(6, 10)))
    start = ready(replace(UPDATES, noise_schedule="independent"), problem, SCHEME, rounds=4, precision=TF32)
    assert precisions(run_program.lower(start.arguments, start.static).as_text()) == {"HIGH", "HIGHEST"}


def test_a_guarantee_states_that_norms_are_rounded(softmax_problem):
    noisy, quiet = NoisySGD(noise_std=1.0, step_size=0.1), NoisySGD(noise_std=0.0, step_size=0.1)
    for protocol, precision, stated in ((noisy, TF32, True), (noisy, "float32", False), (quiet, TF32, False)):
        guarantee = ready(protocol, softmax_problem, SCHEME, precision=precision).guarantee
        assert ("rounded products" in {one.name for one in guarantee.assumptions}) == stated


def test_a_file_sets_the_precision():
    start = jobs(experiment.load("quickstart", {"sweep.precision": TF32}))[0].prepare()
    assert start.static.precision == "tf32"
    assert start.attributes()["precision"] == "tf32"


def test_an_unknown_precision_is_refused(softmax_problem):
    with pytest.raises(Refusal, match="unknown precision 'float16'"):
        ready(DPMu2(mu=1.0, clip=1.0), softmax_problem, SCHEME, precision="float16")
