"""Names and arguments that editors complete: without running the package (jedi), and in IPython."""

import inspect

import pytest
from cases import sparing

import fedprivjax

jedi = pytest.importorskip("jedi")  # of IPython

CALLS = {
    "fpj.simulate(": ("protocol", "problem", "participation", "rounds", "seed", "eval_every"),
    "fpj.sweep(": ("protocol", "over", "seeds", "rounds", "metrics", "keep", "folder", "part"),
    "fpj.FedAvg(": ("unit", "epsilon", "step_size", "local_epochs", "update_clip"),
    "fpj.Uniform(": ("machines", "per_round"),
    "fpj.datasets.load(": ("name",),
}
START = "import fedprivjax as fpj\n"
INTERNAL = {"known", "slot_classes", "weighted", "epoch", "planned_scale", "server_steps"}
OPEN_ENDED = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A folder outside of the checkout, with this interpreter."""
    project = jedi.Project(tmp_path_factory.mktemp("elsewhere"))
    return lambda code: jedi.Script(code, project=project, environment=jedi.InterpreterEnvironment())


def test_an_editor_completes_every_public_name_from_another_folder(elsewhere):
    found = {one.name for one in elsewhere(f"{START}fpj.").complete()}
    assert set(fedprivjax.__all__) - found == set()


@pytest.mark.parametrize("call", sparing(list(CALLS), ["fpj.sweep("]))
def test_an_editor_and_ipython_complete_the_arguments_of_a_call(call, elsewhere):
    static = elsewhere(START + call)
    (signature,) = static.get_signatures()
    assert set(CALLS[call]) <= {one.name for one in signature.params}
    assert {f"{name}=" for name in CALLS[call]} <= {one.name for one in static.complete()}
    (running,) = jedi.Interpreter(call, [{"fpj": fedprivjax}]).get_signatures()
    assert set(CALLS[call]) <= {one.name for one in running.params}


def test_an_editor_knows_what_a_run_has(elsewhere):
    found = {one.name for one in elsewhere(f"{START}run = fpj.simulate()\nrun.").complete()}
    assert {"metrics", "guarantee", "params", "costs"} <= found


def test_a_class_shows_its_arguments_without_what_is_derived():
    any_number = ("Mixing", "Refusal", "ServerOptimizer")
    values = {name: getattr(fedprivjax, name) for name in fedprivjax.__all__ if name not in any_number}
    known = {name: inspect.signature(value).parameters for name, value in values.items() if inspect.isclass(value)}
    assert [name for name, each in known.items() if OPEN_ENDED & {one.kind for one in each.values()}] == []
    assert [name for name, each in known.items() if INTERNAL & set(each)] == []


def test_arguments_of_a_method_come_before_those_that_all_protocols_share():
    names = list(inspect.signature(fedprivjax.FedAvg).parameters)
    assert names[0] == "unit"
    assert names[-2:] == ["calibrate_to", "adversary"]
    assert list(inspect.signature(fedprivjax.Protocol).parameters)[:3] == ["algorithm", "privacy", "mu"]
