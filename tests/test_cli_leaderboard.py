"""`fedprivjax leaderboard`: a custom method joins with a protocol file and one command."""

import json
import sys
from pathlib import Path

import pytest
from small_file import TITLED

import fedprivjax as fpj
from fedprivjax import cli

SPEC = (
    TITLED
    + """
[tuning]
problem = { options = { examples = 60, features = 3, seed = 1 } }
seeds = 1

[[protocol]]
name = "dp_mu2"
label = "theirs"
grid = { step_size = [0.1, 0.2] }

[sweep]
epsilon = [1.0, 4.0]
seeds = 3

[evaluation]
metrics = ["excess_risk"]
select = "excess_risk"
"""
)
MINE = """
[[protocol]]
name = "mine:Mine"
label = "mine"
step_size = 0.1
privacy = { kind = "messages" }
"""
MODULE = """
from flax import struct
from fedprivjax.protocols.noisy_sgd import SGD

@struct.dataclass
class Mine(SGD):
    pass
"""


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Function that runs the command line in this process, in a folder with the files, and returns its outcome."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"small.toml": SPEC, "mine.toml": MINE, "mine.py": MODULE}.items():
        Path(name).write_text(text, encoding="utf-8")

    def run(*arguments, width=200):
        monkeypatch.setattr(sys, "argv", ["fedprivjax", *map(str, arguments)])
        monkeypatch.setattr(cli.out, "_width", width)
        monkeypatch.setattr(cli.console, "leave", sys.exit)
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code or 0, *capsys.readouterr()

    return run


def rows():
    return json.loads(Path("board.json").read_text(encoding="utf-8"))["rows"]


@pytest.mark.slow
def test_a_custom_method_joins_the_others(call):
    assert call("run", "small.toml", "--out", "a")[0] == 0
    assert call("leaderboard", "a", "--into", "board.json")[0] == 0
    first = rows()
    assert [(row["method"], row["target_epsilon"]) for row in first] == [("theirs", 1.0), ("theirs", 4.0)]
    status, _, said = call("run", "small.toml", "--set", "protocol=@mine.toml", "--out", "b")
    assert status == 0, said
    status, said, _ = call("leaderboard", "b", "--into", "board.json")
    assert status == 0
    assert said.rstrip().endswith("2 rows joined to board.json: 4 in all")
    assert [row for row in rows() if row["method"] == "theirs"] == first
    own = [row for row in rows() if row["method"] == "mine"]
    assert {row["command"] for row in own} == {"fedprivjax run small.toml --set protocol=@mine.toml"}
    assert {row["protocol"] for row in own} == {"mine:Mine"}
    assert {row["federation"] for row in rows()} == {first[0]["federation"]}
    shown = call("leaderboard", "--into", "board.json")[1]
    assert shown.count("mean ± 95% interval") == 2


def test_the_bundled_leaderboard_has_a_line_for_each_experiment_and_tables_by_name(call):
    status, said, _ = call("leaderboard", width=80)
    assert status == 0
    assert len(said.splitlines()) <= 40
    assert "frontier/digits " in said
    assert "frontier/users (shuffler)" in said
    assert "torus, DECOR ‡" in said
    assert "‡ settings not covered" in said
    assert "of 2)" not in said
    for name in ("frontier/digits", "frontier/digits/"):
        said = call("leaderboard", name)[1]
        assert said.count("frontier/digits: test accuracy %, mean ± 95% interval") == 5
        assert "frontier/epsilon" not in said
    assert "topology" not in call("leaderboard", "frontier")[1]
    Path("frontier").mkdir()
    assert "topology" not in call("leaderboard", "frontier")[1]
    assert "mean ± 95% interval; ε = 2 " in call("leaderboard", "topology", "frontier/users", "--all")[1]
    status, _, said = call("leaderboard", "frontier/digit")
    assert (status, said.startswith("unknown experiment 'frontier/digit', did you mean")) == (2, True)
    assert call("leaderboard", "none.nc")[2].startswith("results folder must exist, got none.nc")


def test_names_and_hints_are_of_the_file_of_into(call):
    Path("mine.json").write_text(fpj.leaderboard().to_json().replace('"topology/', '"rings/'), encoding="utf-8")
    assert "next: --all\n" in call("leaderboard", "mine.json")[1]
    status, said, _ = call("leaderboard", "--into", "mine.json")
    assert (status, said.count("next: fedprivjax leaderboard frontier/digits --into mine.json (its tables)")) == (0, 1)
    Path("rings").mkdir()
    status, said, _ = call("leaderboard", "rings", "--into", "mine.json")
    assert (status, "rings/gossip" in said) == (0, True)


def test_refusals_are_lines(call):
    status, _, said = call("leaderboard", "--into", "none.json")
    assert (status, said) == (
        2,
        "leaderboard file must exist, got none.json. Write it with fedprivjax leaderboard RESULTS --into\n",
    )
    status, _, said = call("run", "small.toml", "--set", "protocol=@small.txt")
    assert (status, said) == (2, "protocol file must exist, got 'small.txt'. Write protocol=@FILE\n")
    Path("empty.toml").write_text("", encoding="utf-8")
    status, _, said = call("run", "small.toml", "--set", "protocol=@empty.toml")
    assert (status, said) == (
        2,
        "empty.toml must have [[protocol]] entries, got none. Write them as in an experiment file\n",
    )


@pytest.mark.slow
def test_results_of_few_seeds_are_refused_in_lines(call):
    assert call("run", "small.toml", "--set", "sweep.seeds=2", "--out", "c")[0] == 0
    status, _, said = call("leaderboard", "c")
    assert status == 2
    assert said.splitlines() == [
        "c: refused: theirs, epsilon 1: seeds must be at least 3, got 2. Run more seeds",
        "c: refused: theirs, epsilon 4: seeds must be at least 3, got 2. Run more seeds",
        "results must have a row that can enter the leaderboard, got none",
    ]
