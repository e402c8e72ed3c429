"""Programs that are compiled for a card that is not there: what is read from their text, and the tables."""

import json
import re
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedprivjax import Refusal, cli
from fedprivjax.bench import accelerator, cards, cell, compiled
from fedprivjax.bench.cards import CARDS, computations, counted, products_of, seconds
from fedprivjax.bench.compiled import PlanRow, Row, least_bytes, method
from fedprivjax.experiment import bundle
from fedprivjax.protocols import ALGORITHMS, PROTOCOLS
from fedprivjax.testing.combinations import composed

SAMPLE = Path(__file__).with_name("compiled_for_h100.txt").read_text()  # 8 steps of SGD on 32 of 1000 rows of 64
HERE = any(map(find_spec, cards.PACKAGES))
TABLE = bundle() / "benchmarks" / "compiled_h100.json"
COMPARED = ("dp_mu2", "noisy_sgd", "fedavg")  # methods that a test compiles again


def test_kernels_of_a_loop_count_once_for_each_step():
    kernels, copies, _, collectives = counted(SAMPLE)
    assert kernels == 8 * 6 + 3
    assert (copies, collectives) == (2, {})
    assert counted(SAMPLE.replace('"n":"8"', '"n":"5"'))[0] == 5 * 6 + 3


def test_bytes_are_those_of_the_parts_that_kernels_use():
    rows, weights, scores = 32 * 64, 64 * 16, 32 * 16
    gathered = 2 * rows + 32 + 1  # the rows, twice, their indices, and the number of the step; not the 1000 rows
    products = (rows + weights + scores) + (rows + scores + 2 * weights)
    step = gathered + products + (scores + 1) + 3 + 2  # a sum, written into its place; and the next step's number
    once = 2 * weights + 2 + 8
    assert counted(SAMPLE)[2] == 4 * (8 * step + once)


def test_collectives_of_a_loop_are_counted():
    loop = "  %sum = f32[64,16]{1,0} all-reduce-start(%w.1), channel_id=1, to_apply=%region_1.2\n"
    loop += "  %done = f32[64,16]{1,0} all-reduce-done(%sum)\n"
    at = SAMPLE.index("  ROOT %tuple.6")
    more = counted(SAMPLE[:at] + loop + SAMPLE[at:])
    assert more[3] == {"all-reduce": 8}
    assert more[0] == counted(SAMPLE)[0] + 8


def test_the_expensive_branch_and_called_programs_count():
    text = """
%small (a: f32[2]) -> f32[2] {
  %a = f32[2]{0} parameter(0)
  ROOT %copy.1 = f32[2]{0} copy(%a)
}

%large (b: f32[2]) -> f32[2] {
  %b = f32[2]{0} parameter(0)
  %copy.2 = f32[2]{0} copy(%b)
  ROOT %copy.3 = f32[2]{0} copy(%copy.2)
}

ENTRY %main (which: pred[], c: f32[2]) -> f32[2] {
  %which = pred[] parameter(0)
  %c = f32[2]{0} parameter(1)
  %d = f32[2]{0} call(%c), to_apply=%small
  ROOT %e = f32[2]{0} conditional(%which, %d, %d), branch_computations={%small, %large}
}
"""
    assert counted(text)[:3] == (3, 3, 3 * 16)


@pytest.mark.parametrize(
    ("line", "precision"),
    [
        ("%a = f32[4]{0} dot(%b, %c), operand_precision={highest,highest}", ("float32",)),
        ("%a = f32[4]{0} dot(%b, %c), lhs_contracting_dims={1}", ("tf32",)),
        ("%a = f32[4]{0} convolution(%b, %c), operand_precision={highest,default}", ("tf32",)),
        ("%a = s32[4]{0} dot(%b, %c)", ()),
        (
            '%a = (f32[4]{0}, s8[9]{0}) custom-call(%b, %c), custom_call_target="__cublas$gemm", '
            'backend_config={"precision_config":{"operand_precision":["HIGHEST","HIGHEST"]}}',
            ("float32",),
        ),
        (
            '%a = (f32[4]{0}, s8[9]{0}) custom-call(%b, %c), custom_call_target="__cudnn$convForward", '
            'backend_config={"precision_config":{"operand_precision":["DEFAULT","DEFAULT"]}}',
            ("tf32",),
        ),
    ],
)
def test_a_product_that_may_round_its_factors_is_found(line, precision):
    assert products_of(f"  {line}\n") == precision


def test_both_precisions_of_a_program_are_found():
    assert products_of(SAMPLE) == ("float32", "tf32")  # the second product of the sample states no precision
    assert computations(SAMPLE)[1] == "main.7"


def test_a_time_is_that_of_launches_or_of_memory():
    card = CARDS["h100"]
    assert seconds(11, 1e6, card) == pytest.approx(33e-6)
    assert seconds(11, 3.35232e9, card) == pytest.approx(1e-3)
    assert seconds(11, 3.35232e9, CARDS["a100"]) > seconds(11, 3.35232e9, card) > seconds(11, 3.35232e9, CARDS["h200"])


@pytest.fixture
def few_features(monkeypatch):
    cell.make.cache_clear()
    monkeypatch.setattr(cell, "FEATURES", 11)
    yield
    cell.make.cache_clear()


def test_every_algorithm_of_no_method_has_a_pair():
    known = composed().values()
    others = {name for name, (kind, _) in ALGORITHMS.items() if kind not in known}
    like_others = {"ditto", "fednova", "fedper"}  # FedAvg with further gradients, scalars or a part of its message
    like_others |= {"proxskip", "staged"}  # SCAFFOLD with half of its message, SGD with another step in each stage
    assert others - like_others == set(compiled.PAIRS)


@pytest.mark.slow
def test_every_method_has_a_run(few_features):
    for name in (*PROTOCOLS, *compiled.PAIRS):
        assert method(name).static.size.rounds == compiled.ROUNDS


def test_bytes_by_hand_are_those_of_the_accelerators_bench_and_of_the_noise(few_features):
    start, d = method("dp_mu2"), cell.CLASSES * cell.FEATURES
    labels = 4 * cell.PER_ROUND * 2  # a label and a norm of every record
    for layout in (None, (20, 5)):
        seeds, levels = layout or (1, 1)
        expected = accelerator.cost(levels * seeds, seeds, 1)[0] + seeds * (2 * 4 * d + labels)
        assert least_bytes(start, layout) == expected
    assert least_bytes(start, (20, 5), cards=4) == least_bytes(start, (20, 5)) / 4


@pytest.mark.slow
def test_local_steps_read_and_write_the_parameters_of_every_machine(few_features):
    start, d = method("fedexp"), cell.CLASSES * cell.FEATURES
    records = 4 * 10 * 600 * (cell.FEATURES + 2)
    assert least_bytes(start, None) - records == pytest.approx(2 * 4 * d * 10 * 60, rel=0.01)  # and the server's state


ROW = Row("dp_mu2", "100", 11.9, 0.02, 2.5e6, 9e6, {"all-reduce": 1.0}, ("float32",), 3_000_000, 4e-5)
PLANNED = [PlanRow("one", 4, 2, 2**30, 1.5), PlanRow("other", 6, 1, 2**40, 2.0)]


def test_the_table_says_that_nothing_was_run():
    table = compiled.table([ROW], "h100", 8)
    assert "8 × NVIDIA H100" in str(table.title)
    assert "compiled, not run" in str(table.title)
    cells = [next(iter(column.cells)) for column in table.columns]
    assert cells == ["dp_mu2", "100", "11.9", "2.5", "9", "3", "1 all-reduce", "float32", "40"]
    written = json.loads(json.dumps(compiled.as_json([ROW], "h100", 8)))
    assert written["results"][0]["kernels"] == 11.9
    assert {"card": "h100", "cards": 8, "jax": version("jax")}.items() <= written.items()


def test_the_plan_has_a_total_and_says_what_does_not_fit():
    table = compiled.plan_table(PLANNED, "h100")
    memory, fits, taken = ([*column.cells] for column in table.columns[-3:])
    assert (memory, fits, taken) == (["1", "1.02e+03", ""], ["yes", "no", ""], ["1.5", "2", "3.5"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--compile-for", "h1000"], "unknown card 'h1000', did you mean 'h100'?"),
        (["bench", "--compile-for", "h100", "--cards", "0"], "cards must be at least 1, got 0"),
        (["bench", "--compile-for", "h100", "--only", "dp_mu"], "unknown method or network 'dp_mu'"),
        (["bench", "--compile-for", "h100", "--check-device"], "--check-device must be left out with --compile-for"),
        (["bench", "--cards", "8"], "--cards must go with --compile-for, got 8"),
        (["plan", "quickstart", "--card", "h10"], "unknown card 'h10'"),
        (
            ["plan", "quickstart", "--card", "h100", "--epsilon", "1"],
            "--epsilon must be left out with --card, got [1.0]",
        ),
        (["plan", "--card", "h100"], "--card must go with an experiment"),
    ],
)
def test_bad_options_are_refused_before_anything_compiles(arguments, message, monkeypatch):
    monkeypatch.setattr(compiled, "require_compiler", lambda: None)
    answer = CliRunner().invoke(cli.app, arguments)
    assert isinstance(answer.exception, Refusal)
    assert message in str(answer.exception)


@pytest.mark.parametrize("arguments", [["bench", "--compile-for", "a100"], ["plan", "quickstart", "--card", "h200"]])
def test_without_the_compiler_the_remedy_is_one_line(arguments, monkeypatch):
    monkeypatch.setattr(cards, "find_spec", lambda name: None)
    answer = CliRunner().invoke(cli.app, arguments)
    assert isinstance(answer.exception, Refusal)
    assert "Install fedprivjax[cuda12]" in str(answer.exception)
    assert "\n" not in str(answer.exception)


def test_the_page_shows_the_committed_table():
    page = Path(__file__).parents[2].joinpath("notebooks/performance.md").read_text(encoding="utf-8")
    found = {(row["name"], row["runs"]): row for row in json.loads(TABLE.read_text())["results"]}
    assert list(dict.fromkeys(name for name, _ in found)) == list(compiled.NAMES)
    shown = re.findall(r"^\| (\w+) \| ([\d,]+) \| ([\d.,]+) \| .* \| ([\d.,]+) \|$", page, re.MULTILINE)
    assert {name for name, *_ in shown} == set(compiled.NAMES)
    for name, runs, *numbers in shown:
        row = found[name, runs]
        expected = [row["kernels"], 1e6 * row["seconds"]]
        assert [float(number.replace(",", "")) for number in numbers] == pytest.approx(expected, rel=0.005)


def test_the_committed_table_has_few_kernels():
    kernels = {row["name"]: row["kernels"] for row in json.loads(TABLE.read_text())["results"] if row["runs"] == "1"}
    most = {"noisy_sgd": 11, "dp_mu2": 13, "noisy_minibatch_sgd": 13, "tree_momentum": 14, "fedavg": 60 * 6}
    assert {name for name, number in most.items() if kernels[name] > number} == set()


@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="jax's compiler for GPUs is not installed")
def test_the_committed_table_is_that_of_the_compiler(tmp_path):
    known = json.loads(TABLE.read_text())
    if known["jax"] != version("jax"):
        pytest.skip(f"the table is of jax {known['jax']}")
    file = tmp_path / "found.json"
    only = [option for name in COMPARED for option in ("--only", name)]
    command = ["bench", "--compile-for", known["card"], *only, "--json", str(file)]
    subprocess.run([sys.executable, "-c", "from fedprivjax.cli import main; main()", *command], check=True)
    found = json.loads(file.read_text())["results"]
    expected = [row for row in known["results"] if row["name"] in COMPARED]
    assert found == expected
