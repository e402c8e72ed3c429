"""`leaderboard`: rows of results, refused rows, joining, and damaged files."""

import json
import shlex
from types import SimpleNamespace

import numpy as np
import pytest

import fedprivjax as fpj
from fedprivjax import Refusal, experiment
from fedprivjax.cli.console import changes_of
from fedprivjax.engine.metrics import known
from fedprivjax.experiment import folder
from fedprivjax.experiment.run import run
from fedprivjax.leaderboards.leaderboard import Leaderboard, entries
from fedprivjax.leaderboards.rows import FIELDS, faults, federation

RISK = known("excess_risk")
SOURCE = {"experiment": "small", "command": "fedprivjax run small"}


def make(seeds=3, **changes):
    spec = {
        "title": "small",
        "problem": {"dataset": "least_squares", "options": {"examples": 30, "features": 3}, "radius": 2.0},
        "participation": {"machines": 6, "per_round": 3},
        "protocol": [
            {"name": "dp_mu2", "label": "ours", "step_size": 0.1},
            {"name": "noisy_sgd", "label": "chosen", "grid": {"step_size": [0.1, 0.2]}},
            {"name": "noisy_sgd", "label": "free", "mu": float("inf"), "step_size": 0.1},
        ],
        "sweep": {"epsilon": [1.0, 4.0], "seeds": seeds},
        "evaluation": {"select": "excess_risk"},
    }
    return experiment.parse({**spec, **changes})


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    into = tmp_path_factory.mktemp("results")
    folder.claim(into, make())
    folder.save(run(make()), into, "small", 1.0, SOURCE)
    return fpj.load(into)


@pytest.fixture(scope="module")
def board(results):
    return entries(results)[0]


def test_rows_have_the_numbers_of_the_tables(results, board):
    frame = fpj.frame(results, "excess_risk")
    sheet = fpj.table(results, "excess_risk").sheets[0].frame
    assert len(board.rows) == 4
    for row in board.rows:
        expected = frame.loc[(row["target_epsilon"], row["method"]), ["mean", "half_width", "realised_epsilon"]]
        np.testing.assert_allclose(
            [row["mean"], row["half_width"], row["epsilon"]], expected.to_numpy(float), rtol=1e-7, atol=0
        )
        column = next(name for name in sheet if str(name).startswith(row["method"]))
        shown = sheet.loc[sheet["epsilon"].astype(float) == row["target_epsilon"], column].item()
        assert shown.startswith(f"{RISK.text(row['mean'])} ± {RISK.text(row['half_width'])}")


def test_rows_have_the_guarantee_the_costs_and_the_origin(results, board):
    row = next(row for row in board.rows if row["method"] == "ours")
    guarantee = fpj.guarantee_of(results["ours"].sel(epsilon=row["target_epsilon"]))
    assert [row[name] for name in ("unit", "relation", "trust", "theorem")] == [
        guarantee.unit,
        guarantee.terms.stated_relation,
        guarantee.trust,
        guarantee.theorem,
    ]
    assert row["delta"] == guarantee.delta
    data = results["ours"].sel(epsilon=row["target_epsilon"])
    assert row["sent_bytes"] == pytest.approx(float(data["sent_bytes"].mean()))
    assert row["rounds"] == pytest.approx(float(data["rounds_taken"].mean()))
    assert {**row, **SOURCE} == row
    assert list(row) == list(FIELDS)


def test_a_choice_that_no_guarantee_covers_is_marked(board):
    of = {row["method"]: row for row in board.rows}
    assert of["chosen"]["not_covered"] == "step_size chosen by results"
    assert of["ours"]["not_covered"] == ""
    text = str(board)
    assert "chosen ‡" in text
    assert "ours ‡" not in text


def test_methods_without_an_epsilon_are_refused_by_name(results):
    assert entries(results)[1] == ["free: epsilon must be the realised ε of a private method, got none"]


@pytest.mark.parametrize(
    ("seeds", "fault"), [(1, "for an interval, got fewer"), pytest.param(2, "got 2", marks=pytest.mark.slow)]
)
def test_few_seeds_are_refused(seeds, fault, results, tmp_path):
    folder.claim(tmp_path, make(seeds))
    fewer = {label: data.isel(seed=slice(seeds)) for label, data in results.items()}
    folder.save(fewer, tmp_path, "small", 1.0, SOURCE)
    found, refused = entries(fpj.load(tmp_path))
    assert not found.rows
    assert any(line.startswith("ours, epsilon 1: seeds must be ") and fault in line for line in refused)


def test_diverged_runs_are_refused(results):
    data = results.datasets["ours"]
    bad = data.assign(diverged=data["diverged"] | ((data["epsilon"] == 4.0) & (data["seed"] == data["seed"][0])))
    damaged = type(results)(results.folder, {**results.datasets, "ours": bad}, results.provenance, results.settings)
    found, refused = entries(damaged)
    assert "ours, epsilon 4: runs must not diverge, got 1 of 3 diverged" in refused
    assert [row["target_epsilon"] for row in found.rows if row["method"] == "ours"] == [1.0]


def test_results_without_their_command_are_refused(results, tmp_path):
    folder.claim(tmp_path, make())
    folder.save(dict(results), tmp_path, "small", 1.0, None)
    with pytest.raises(Refusal, match=r"must state the command that made them, got none\. Run the experiment"):
        entries(fpj.load(tmp_path))


def test_joining_twice_changes_nothing(board, tmp_path):
    file = tmp_path / "frontier.json"
    board.save(file)
    first = file.read_text(encoding="utf-8")
    again = fpj.leaderboard(file).joined(reversed(board.rows))
    assert again == board
    again.save(file)
    assert file.read_text(encoding="utf-8") == first


def test_a_row_replaces_that_of_the_same_method_and_epsilon(board):
    newer = {**board.rows[0], "mean": 0.5}
    joined = board.joined([newer])
    assert len(joined.rows) == len(board.rows)
    assert newer in joined.rows
    assert board.rows[0] not in joined.rows


def test_rows_of_other_guarantees_or_federations_have_their_own_table(board):
    for change in ({"unit": "all records of one machine"}, {"trust": "server"}, {"federation": "another"}):
        other = board.joined([{**board.rows[0], **change, "method": "another"}])
        assert len(other.tables) == len(board.tables) + 1
        assert len({table.title for table in other.tables}) == len(other.tables)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"delta": 1e-10}, {"delta": 1e-12}),
        ({"target_epsilon": None, "epsilon": 28.3}, {"target_epsilon": None, "epsilon": 133.8}),
    ],
)
def test_rows_of_unequal_privacy_do_not_replace_each_other_and_are_not_ranked_together(board, one, other):
    row = board.rows[0]
    joined = board.joined([{**row, **one}, {**row, **other}])
    assert len(joined.rows) == len(board.rows) + 2
    assert len(joined.tables) == len(board.tables) + 2
    assert len({table.title for table in joined.tables}) == len(joined.tables)


def test_the_best_mean_comes_first(board):
    for rows in board._groups():
        assert [row["mean"] for row in rows] == sorted(row["mean"] for row in rows)
    higher = Leaderboard().joined([{**row, "better": "higher"} for row in board.rows])
    for rows in higher._groups():
        assert [row["mean"] for row in rows] == sorted((row["mean"] for row in rows), reverse=True)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"seeds": 2}, "seeds must be at least 3, got 2. Run more seeds"),
        ({"epsilon": None}, "epsilon must be the realised ε of a private method, got none"),
        ({"epsilon": float("nan")}, "epsilon must be a finite number, got nan"),
        ({"epsilon": 40.0}, "epsilon must be at most its target"),
        ({"target_epsilon": 1.0, "epsilon": 1.009}, "epsilon must be at most its target 1, got 1.009"),
        ({"epsilon": True}, "epsilon must be a number, got True"),
        ({"mean": "0.5"}, "mean must be a number, got '0.5'"),
        ({"command": " "}, "command must have at least 1 character, got ' '"),
        ({"relation": "other"}, "relation must match pattern"),
        ({"rank": 1}, "rank must be a known field, got 1"),
        ({"diverged": 1}, "runs must not diverge, got 1 of 3 diverged"),
    ],
)
def test_a_fault_of_a_row_is_one_line(board, change, fault, tmp_path):
    row = {**board.rows[0], **change}
    assert len(faults(row)) == 1
    assert faults(row)[0].startswith(fault)
    file = tmp_path / "frontier.json"
    file.write_text(json.dumps({"format": 1, "rows": [row]}), encoding="utf-8")
    with pytest.raises(Refusal) as refused:
        fpj.leaderboard(file)
    assert str(refused.value).startswith(f"{file}: row 0 ({row['method']}): {fault}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "must be a JSON file, and cannot be read"),
        ("[]", "must be an object with a list of rows"),
        ('{"format": 2, "rows": []}', "must be a leaderboard in format 1, got format 2"),
        ('{"format": 1, "rows": [3]}', "row 0: row must be an object, got 3"),
    ],
)
def test_a_damaged_file_is_one_line(text, fault, tmp_path):
    file = tmp_path / "frontier.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(Refusal) as refused:
        fpj.leaderboard(file)
    assert fault in str(refused.value)
    assert "\n" not in str(refused.value)


def test_one_row_twice_in_a_file_is_refused(board, tmp_path):
    file = tmp_path / "frontier.json"
    file.write_text(json.dumps({"format": 1, "rows": [board.rows[0]] * 2}), encoding="utf-8")
    with pytest.raises(Refusal, match=r"must have one row for each method and ε, got several of"):
        fpj.leaderboard(file)


def test_the_plot_has_a_line_for_each_method(board):
    (axis,) = board.plot().axes
    assert axis.get_legend_handles_labels()[1] == ["chosen ‡", "ours"]
    with pytest.raises(Refusal, match="must have a row to be drawn"):
        Leaderboard().plot()


def test_methods_at_one_epsilon_are_side_by_side():
    (axis,) = fpj.leaderboard().of("frontier/server").plot().axes
    assert [line.get_xdata().tolist() for line in axis.lines] == [[0], [1], [2], [3], [4]]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["2"]


@pytest.mark.parametrize("height", [3.0, 5.2])
def test_the_legend_is_below_the_label_of_the_axis_at_any_height(board, height):
    figure = board.plot()
    figure.set_size_inches(5.6, height)
    figure.draw_without_rendering()
    (axis,) = figure.axes
    assert axis.get_legend().get_window_extent().y1 < axis.xaxis.label.get_window_extent().y0


def test_the_bundled_rows_can_enter_and_are_of_committed_code():
    file = experiment.bundle() / "frontier" / "frontier.json"
    bundled = fpj.leaderboard()
    assert bundled.to_json() == file.read_text(encoding="utf-8")
    assert {row["experiment"] for row in bundled.rows} <= set(experiment.bundled())
    assert all(row["commit"] and not row["commit"].endswith("+") for row in bundled.rows)


def test_the_bundled_rows_have_the_federation_of_their_command():
    rows = {row["command"]: row["federation"] for row in fpj.leaderboard().rows}
    assert len(rows) > 10
    for command, stated in rows.items():
        _, _, name, *changes = shlex.split(command)
        spec = experiment.load(name, changes_of(changes[1::2]))
        assert federation(SimpleNamespace(spec=spec, datasets={})) == stated, command
