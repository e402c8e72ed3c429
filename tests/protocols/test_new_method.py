"""A new method touches its own file and one line of `PROTOCOLS`: it is listed, planned and audited from there."""

import sys
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import pytest
from audited import smaller
from flax import struct
from heavy_ball import HeavyBall

from fedprivjax import NoisyMessages, Protocol, cli, planner
from fedprivjax.auditing.neighbouring import FIXED, MACHINES
from fedprivjax.auditing.of_experiment import chosen, run_all, scaled_down_audits
from fedprivjax.experiment import load
from fedprivjax.method.planning.drafts import one_pass
from fedprivjax.method.planning.uses import POPULATION, Use, explicit
from fedprivjax.method.protocol import Levels
from fedprivjax.method.small_form import EPOCH, of_short_epochs, scaled_down
from fedprivjax.method.theory import Theory
from fedprivjax.protocols import PROTOCOLS

FILE = ModuleType("fedprivjax.protocols.momentum_sgd")  # that of the method, in the package
SIZES = {"machines": 10, "per_round": 5, "samples": 20, "dimension": 5, "epsilon": 1.0}


def uses(method):
    return (Use("short memory", one_pass(method, forgetting=0.5)),)


def bound(protocol, run):
    return explicit(POPULATION, "made up", noise=float(protocol.noise_std) * run.step)


@struct.dataclass(kw_only=True)
class MomentumSGD(Levels, Protocol):
    """A method that states nothing of its runs."""

    __module__ = FILE.__name__

    mu: Any = None
    clip: Any = 1.0
    step_size: Any = 0.1

    @property
    def algorithm(self):
        return HeavyBall()

    @property
    def privacy(self):
        return NoisyMessages(clip=self.clip)


@struct.dataclass(kw_only=True)
class Forgetful(MomentumSGD):
    """A method with a custom setting that depends on the length of epochs."""

    __module__ = FILE.__name__

    forgetting: Any = struct.field(default=0.01, metadata={"small": of_short_epochs})

    examples = ({"clip": 1.0, "forgetting": 0.1},)
    theory = Theory(uses=uses, bound=bound)


@pytest.fixture
def registered(monkeypatch):
    """One file of the package with two methods, one line of `PROTOCOLS` each, and nothing else."""
    for method in (MomentumSGD, Forgetful):
        setattr(FILE, method.__name__, method)
    monkeypatch.setitem(sys.modules, FILE.__name__, FILE)
    monkeypatch.setitem(PROTOCOLS, "forgetful", (Forgetful, "momentum that forgets"))
    monkeypatch.setitem(PROTOCOLS, "silent", (MomentumSGD, "momentum that states nothing"))


def test_it_is_listed(registered, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedprivjax", "list", "protocols"])
    monkeypatch.setattr(cli.out, "_width", 200)
    with pytest.raises(SystemExit):
        cli.main()
    assert "momentum that forgets" in capsys.readouterr().out


def test_it_is_planned_by_its_own_uses_and_bound(registered):
    found = planner.plan(**SIZES, protocols=["forgetful", "silent"]).isel(epsilon=0)
    one, other = (found.sel(protocol=label) for label in ("forgetful, short memory", "silent"))
    assert "forgetting=0.5" in one["settings"].item()
    assert (one["theorem"].item(), one["bound_kind"].item()) == ("made up", "explicit")
    assert float(one["bound"]) == pytest.approx(float(one["noise_std"]) * 0.1)
    assert float(one["rounds"]) == 40
    assert other["refusal"].item() == MomentumSGD.theory.not_planned


def test_it_is_audited_in_its_own_scaled_down_form(registered, monkeypatch):
    smaller(monkeypatch, preparing=1024)
    picked = chosen("forgetful", lambda: load("digits_dp_mu2"), 2.0, 1e-5, None)
    protocol = picked.protocols["forgetful"]
    assert (protocol.clip, protocol.forgetting) == (1.0, 0.1)
    assert scaled_down(protocol, MACHINES).forgetting == 1 / EPOCH
    seen = []
    monkeypatch.setattr("fedprivjax.auditing.small_audits.audit", lambda small, *_, **options: seen.append(small))
    attack = scaled_down_audits(picked, runs=1000, rounds=4, seed=0, folder=None, participation=[FIXED])
    run_all(picked, attack, nullcontext)
    assert seen == [scaled_down(protocol, MACHINES)]
