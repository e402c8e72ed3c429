"""The table of combinations: its outcomes are those of `ready`, and what it calls defined runs."""

import json
from itertools import product

import audited
import jax
import numpy as np
import pytest
from flax import struct

from fedprivjax import Algorithm, Refusal, audit, cli, gradient, ready, simulate
from fedprivjax.method.local_release import LocalPrivacy
from fedprivjax.method.noisy_messages import NoisyMessages
from fedprivjax.method.private_mean import GaussianMean
from fedprivjax.privacy.terms import MACHINE, RECORD
from fedprivjax.protocols import ALGORITHMS
from fedprivjax.testing import check_protocol
from fedprivjax.testing.combinations import (
    DEFINED,
    ROUNDS,
    SCHEMES,
    algorithms,
    combinations,
    folded,
    protocol_of,
    small_problem,
)

REDUCED = {
    "unit": ["record", "machine"],
    "noise": ["independent", "uniform", "tree"],
    "records": ["fresh", "subset", "cyclic", "local_epochs"],
    "participation": ["uniform"],
    "clip": ["fixed"],
    "encoder": ["none"],
    "relation": ["replace-one"],
}
QUICK = ["stable structure and dtypes", "the guarantee can be saved and printed"]
UNITS = {"record": RECORD, "machine": MACHINE}


def defined(*names, **axes):
    return [cell for cell, outcome in combinations(names, **axes).items() if outcome == DEFINED]


def by_ready(cell):
    """Return the outcome of preparing a cell's run."""
    try:
        protocol = protocol_of(algorithms()[cell.algorithm], cell)
        terms = ready(
            protocol, small_problem(algorithms()[cell.algorithm]), SCHEMES[cell.participation], rounds=ROUNDS
        ).event.terms
    except Refusal as refusal:
        return refusal.setting
    stated = {"trust": terms.trust, "relation": terms.relation}
    stated |= {} if cell.unit == "none" else {"unit": {one: name for name, one in UNITS.items()}[terms.unit]}
    return DEFINED if all(getattr(cell, name) == one for name, one in stated.items()) else "statement"


def run_of(cell, **settings):
    protocol = protocol_of(algorithms()[cell.algorithm], cell, **settings)
    return simulate(protocol, small_problem(algorithms()[cell.algorithm]), SCHEMES[cell.participation], rounds=ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms())
def test_what_is_defined_runs(name):
    for cell in defined(name, **REDUCED):
        run = run_of(cell, epsilon=8.0)
        terms = run.guarantee.terms
        assert (terms.unit, terms.trust, terms.relation) == (UNITS[cell.unit], cell.trust, cell.relation), cell
        assert 0 < run.guarantee.epsilon <= 8.0 * (1 + 1e-6), cell
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.params)), cell
        check_protocol(
            protocol_of(algorithms()[name], cell),
            small_problem(algorithms()[name]),
            SCHEMES[cell.participation],
            rounds=ROUNDS,
            properties=QUICK,
        )


def test_outcomes_are_those_of_ready():
    axes = {"trust": ["none", "server"], "noise": ["independent", "tree"], "encoder": ["none"]}
    found = list(combinations(["mu2", "scaffold", "mimelite"], **axes).items())
    for at in np.random.default_rng(0).permutation(len(found))[:60]:
        cell, outcome = found[at]
        assert by_ready(cell) == outcome, cell


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms())
def test_what_is_defined_can_be_prepared(name):
    found = defined(name)
    for at in np.random.default_rng(1).permutation(len(found))[:50]:
        assert by_ready(found[at]) == DEFINED, found[at]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "mu2", "tree_momentum", "fedavg"])
def test_no_audit_refutes_what_is_defined(name, monkeypatch):
    audited.smaller(monkeypatch, preparing=512)
    for cell in defined(name, **REDUCED):
        found = audit(protocol_of(algorithms()[name], cell, epsilon=4.0), runs=2000)
        assert not found.refuted, cell


def test_reasons():
    axes = {
        "records": ["local_epochs", "fresh"],
        "encoder": ["none"],
        "trust": ["server"],
        "unit": ["record", "machine"],
    }
    found = combinations(["feddyn", "fedexp", "mu2"], **axes)
    assert {cell.privacy for cell in found} == {NoisyMessages, GaussianMean, LocalPrivacy}

    def reasons(name, **values):
        cells = [cell for cell in found if cell.algorithm == name]
        return {found[cell] for cell in cells if all(getattr(cell, key) == one for key, one in values.items())}

    secret = {"participation": "secret_subsets", "noise": "independent", "unit": "machine"}
    assert reasons("feddyn", **secret) == {"participation"}  # machines keep a state
    assert reasons("fedexp", **secret, relation="replace-one") == {DEFINED}
    assert reasons("fedexp", **secret, relation="add-or-remove-one") == {"relation"}
    assert reasons("fedexp", noise="tree", clip="adaptive", unit="machine") == {"noise_schedule"}
    assert reasons("fedexp", unit="record", noise="independent") == {"trust"}
    assert reasons("mu2", privacy=NoisyMessages, noise="independent", participation="full") == {"noise"}
    assert reasons("mu2", privacy=NoisyMessages, noise="toeplitz", participation="full") == {DEFINED}
    assert reasons("mu2", privacy=GaussianMean, participation="full") == {"reads"}


def test_algorithms_are_those_of_the_registry_and_of_methods(monkeypatch):
    assert {"sgd", "mu2", "fedexp", "fedavg", "scaffold"} <= set(algorithms())

    @struct.dataclass
    class Plain(Algorithm):
        def init(self, public, step):
            return public.start

        def message(self, server, t):
            return 2.0 * gradient(server)

        def serve(self, server, read, at):
            return at.project(jax.tree.map(lambda w, g: w - at.step * g, server, read))

        def point(self, server):
            return server

    monkeypatch.setitem(ALGORITHMS, "plain", (Plain, "plain steps"))
    found = combinations(["plain", "sgd"], unit=["record"], participation=["uniform"], trust=["none"])
    of_sgd = {cell: outcome for cell, outcome in found.items() if cell.algorithm == "sgd"}
    assert DEFINED in of_sgd.values()
    assert {cell._replace(algorithm="plain"): outcome for cell, outcome in of_sgd.items()} == {
        cell: outcome for cell, outcome in found.items() if cell.algorithm == "plain"
    }


def test_rows_hold_every_cell_once():
    found = combinations(["fedexp"], encoder=["none"], trust=["none", "server"])
    cells = {}
    for row in folded(found):
        for values in product(*row.values.values()):
            assert values not in cells
            cells[values] = row.outcome
    assert cells == {(cell.algorithm, cell.privacy.__name__, *cell[2:]): outcome for cell, outcome in found.items()}
    assert len(folded(found)) < len(found) / 20


@pytest.mark.parametrize("name", ["stale_mu2"])
def test_the_command_prints_and_writes_the_rows(name, tmp_path, capsys):
    file = tmp_path / "combinations.json"
    cli.app(["list", name, "--combinations", "--json", str(file)], standalone_mode=False)
    said, rows = capsys.readouterr().out, json.loads(file.read_text(encoding="utf-8"))
    assert "NoisyMessages" in said
    held = [row for row in rows if row["outcome"] == DEFINED]
    assert [(row["trust"], row["noise"], row["unit"]) for row in held] == [(["none"], ["uniform"], ["record", "none"])]
    with pytest.raises(Refusal, match="json must be given with --combinations"):
        cli.app(["list", "--json", str(file)], standalone_mode=False)
    with pytest.raises(Refusal, match="unknown algorithm 'stale'"):
        cli.app(["list", "stale", "--combinations"], standalone_mode=False)
