import hashlib
import json
import os
import shutil
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from cases import sparing

from fedprivjax import Refusal, experiment, load
from fedprivjax.experiment import folder
from fedprivjax.experiment import run as runner
from fedprivjax.experiment.jobs import ready_experiment
from fedprivjax.sweeps.part import Part
from fedprivjax.sweeps.provenance import checksums, commit, provenance

UNITS = {"sent_bits": "bit", "sent_bytes": "byte", "seconds": "s"}


def make(**sweep):
    return experiment.parse(
        {
            "title": "small",
            "problem": {"dataset": "least_squares", "options": {"examples": 30, "features": 3}, "radius": 2.0},
            "participation": {"machines": 6, "per_round": 3},
            "protocol": [{"name": "dp_mu2", "label": "DP-μ²-FL, ours"}, {"name": "noisy_sgd", "mu": float("inf")}],
            "sweep": {"mu": [1, 2], "seeds": 2, **sweep},
        }
    )


@pytest.fixture(scope="module")
def found():
    return runner.run(make())


def test_saved_results_are_loaded_unchanged(found, tmp_path):
    folder.save(found, tmp_path)
    loaded = folder.load(tmp_path)
    assert list(loaded) == list(found) == ["DP-μ²-FL, ours", "noisy_sgd"]
    for label, data in found.items():
        xr.testing.assert_identical(loaded[label], data)
        assert {name: v.dtype for name, v in loaded[label].items()} == {name: v.dtype for name, v in data.items()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["provenance.json", "results.nc"]


def test_provenance_names_versions_machine_date_and_data(found, tmp_path):
    folder.save(found, tmp_path, "small", 12.3456)
    written = json.loads((tmp_path / "provenance.json").read_text(encoding="utf-8"))
    assert written == folder.read(tmp_path)[1]["provenance"]
    again = provenance(found, 12.3456)
    assert written.keys() == again.keys()
    assert {name for name in written if written[name] != again[name]} <= {"date"}
    assert {"fedprivjax", "jax", "jaxlib", "numpy", "python", "platform", "device", "cpu", "commit"} <= written.keys()
    assert written["wall_seconds"] == 12.346
    assert "--xla_force_host_platform_device_count=4" in written["xla_flags"]  # of all tests, see conftest.py
    assert abs(datetime.now(UTC) - datetime.fromisoformat(written["date"])) < timedelta(minutes=5)
    problem = experiment.make_problem(make().problem, 6)
    features = hashlib.sha256(np.asarray(problem.pool.features).tobytes()).hexdigest()
    assert written["data_sha256"]["training.features"] == features


GIT = """#!{python}
import sys
words = sys.argv[1:]
assert "--no-optional-locks" in words
print({head!r} if "rev-parse" in words else {status!r})
"""


@pytest.mark.parametrize(("status", "mark"), [("", ""), (" M file", "+")])
def test_the_commit_is_that_of_the_checkout_and_marked_where_files_differ(tmp_path, monkeypatch, status, mark):
    """A stub replaces git, so the tests do not need it."""
    head, program = "0123456789abcdef" * 2 + "01234567", tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(GIT.format(python=sys.executable, head=head, status=status), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert commit(tmp_path) is None
    (tmp_path / ".git").mkdir()
    assert commit(tmp_path) == head + mark


def test_provenance_does_not_need_git(found, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / ".git").mkdir()
    assert commit(tmp_path) is None
    folder.save(found, tmp_path / "results")
    assert folder.read(tmp_path / "results")[1]["provenance"]["commit"] is None
    assert folder.finished(tmp_path / "results")


def test_a_repository_without_a_commit_has_none(tmp_path, monkeypatch):
    """The commit is None with git and without it."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / ".git").mkdir()
    assert commit(tmp_path) is None


def test_every_trial_has_its_checksum():
    data = [xr.Dataset(attrs={"data": text}) for text in ('{"training": "a"}\n{"training": "b"}', '{"training": "a"}')]
    assert checksums({"ours": data[0], "theirs": data[1]}) == {"training": ["a", "b"]}
    assert checksums({"theirs": data[1]}) == {"training": "a"}


def test_the_root_explains_how_to_open_the_file(found, tmp_path):
    folder.save(found, tmp_path, "small")
    with xr.open_dataset(tmp_path / "results.nc", engine="h5netcdf") as root:
        assert root.attrs["title"] == "small"
        assert list(root.attrs["groups"]) == list(found)
        assert "open_datatree" in root.attrs["how_to_open"]
        assert "fedprivjax.load" in root.attrs["how_to_open"]
        assert {"fedprivjax", "date"} <= json.loads(root.attrs["provenance"]).keys()


def test_every_variable_is_described(found, tmp_path):
    folder.save(found, tmp_path)
    for data in folder.load(tmp_path).values():
        for name, variable in data.variables.items():
            assert variable.attrs["long_name"], name
            assert variable.attrs["units"] == UNITS.get(str(name), "1"), name
    excess = found["noisy_sgd"]["distance"]
    assert (excess.attrs["valid_min"], excess.attrs.get("valid_max")) == (0.0, None)


@pytest.mark.parametrize("content", sparing([b"", b"no netCDF", None], [None]))
def test_broken_results_are_refused_in_one_line(found, tmp_path, content):
    folder.save(found, tmp_path)
    file = tmp_path / "results.nc"
    file.write_bytes(file.read_bytes()[:3000] if content is None else content)
    with pytest.raises(Refusal, match=r"^\S+results\.nc must be a file as it was written, and cannot be read: [^\n]+$"):
        folder.load(tmp_path)


@pytest.mark.parametrize(("text", "why"), [("{", "cannot be read"), ("[]", "got list")])
def test_a_broken_provenance_is_refused_in_one_line(found, tmp_path, text, why):
    found["noisy_sgd"].assign_attrs(provenance=text).to_netcdf(tmp_path / "one.nc", engine="h5netcdf")
    with pytest.raises(Refusal, match=rf"^[^\n]*one\.nc must be [^\n]*{why}[^\n]*$"):
        folder.load_file(tmp_path / "one.nc")


def test_claiming_a_folder_writes_settings_and_may_be_repeated(tmp_path):
    into = tmp_path / "deep" / "er"
    for _ in range(2):
        folder.claim(into, make())
        assert [path.name for path in into.iterdir()] == ["spec.toml"]
        assert experiment.parse(tomllib.loads((into / "spec.toml").read_text(encoding="utf-8"))) == make()


@pytest.mark.parametrize("content", [None, b"title = ", b"\xff"])
def test_claiming_refuses_results_of_other_settings(tmp_path, content):
    folder.claim(tmp_path, make(mu=[1, 4]))
    spec = tmp_path / "spec.toml"
    if content is not None:
        spec.write_bytes(content)
    before = spec.read_bytes()
    with pytest.raises(ValueError, match=r"holds results of different settings.*\. Choose another with --out"):
        folder.claim(tmp_path, make())
    assert spec.read_bytes() == before


@pytest.mark.parametrize("below", ["", "deeper", "deeper/still"])
def test_claiming_refuses_an_unwritable_folder(tmp_path, below):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^results folder \S+ must be writable: [^\n]+$"):
        folder.claim(tmp_path / "file" / below, make())
    assert (tmp_path / "file").read_text(encoding="utf-8") == "in the way"


@pytest.mark.parametrize(
    ("changes", "source", "below", "message"),
    [
        ({"notes": "caf\udce9"}, {}, "", r"""^texts must be in UTF-8, got 'notes = "caf\\udce9'\. If it is the"""),
        ({}, {"experiment": "caf\udce9.toml"}, "", r"""^texts must be in UTF-8, got 'experiment = "caf\\udce9'\. """),
        ({}, {}, "caf\udce9", r"""^texts must be in UTF-8, got '"results folder" = \S+caf\\udce9'\. """),
    ],
)
def test_texts_that_cannot_be_stored_are_refused(tmp_path, changes, source, below, message):
    with pytest.raises(Refusal, match=message):
        folder.claim(tmp_path / below / "there", make().but(**changes), None, source)
    assert not os.listdir(tmp_path)


def test_settings_of_lists_that_mix_texts_and_tables_are_claimed(tmp_path):
    """Such as the feature maps of this file."""
    folder.claim(tmp_path / "there", experiment.load("frontier/features-scattering"))
    assert folder.begun(tmp_path / "there")


@pytest.mark.slow
def test_a_folder_that_is_removed_meanwhile_has_its_settings_in_the_end(found, tmp_path, monkeypatch):
    def removing(*_, **__):
        shutil.rmtree(tmp_path / "out")
        return found

    monkeypatch.setattr(runner, "_datasets", removing)
    ready = ready_experiment(make())
    runner.run_ready(ready, tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == ["inputs.json", "provenance.json", "results.nc", "spec.toml"]
    assert experiment.to_mapping(load(tmp_path / "out").spec) == experiment.to_mapping(make())
    assert runner.run_ready(ready, tmp_path / "out", resume=True).keys() == found.keys()


def test_the_provenance_is_that_of_the_results_whatever_stands_beside_them(found, tmp_path):
    """As after a kill between the two renames."""
    folder.save(found, tmp_path)
    before = load(tmp_path).provenance
    (tmp_path / "provenance.json").write_text("{}")
    assert load(tmp_path).provenance == before
    (tmp_path / "provenance.json").unlink()
    assert load(tmp_path).provenance == before
    assert folder.finished(tmp_path)


def test_results_of_another_experiment_are_not_those_of_the_folder(found, tmp_path):
    ours, theirs = make(), make()
    theirs = theirs.but(evaluation=theirs.evaluation.but(delta=0.02))
    for name, one in (("ours", ours), ("theirs", theirs)):
        (tmp_path / name).mkdir()
        folder.save(found, tmp_path / name, experiment=one)
        assert folder.finished(tmp_path / name)
    (tmp_path / "ours" / "results.nc").write_bytes((tmp_path / "theirs" / "results.nc").read_bytes())
    with pytest.warns(UserWarning, match=r"computed again: results\.nc is of another experiment than spec\.toml"):
        assert not folder.finished(tmp_path / "ours")
    with pytest.raises(Refusal, match=r"must be that in spec\.toml, 0\.02, got"):
        _ = load(tmp_path / "theirs").best


@pytest.mark.parametrize("size", sparing([0, 700, 1500, 20_000], [700]))
def test_a_full_disk_leaves_the_chunks(found, tmp_path, file_size_limit, size):
    """If either file cannot be written, HDF5 does not fail, and neither file exists without the other."""
    chunk = tmp_path / "chunks" / "one.npz"
    chunk.parent.mkdir()
    chunk.touch()
    with file_size_limit(size), pytest.raises(OSError, match="File too large") as caught:
        folder.save(found, tmp_path)
    assert Path(caught.value.filename).name in ("results.nc", "provenance.json")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [chunk]
    folder.save(found, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["provenance.json", "results.nc"]


def test_an_interrupted_write_keeps_the_old_files(found, tmp_path, monkeypatch):
    folder.save(found, tmp_path)
    before = (tmp_path / "results.nc").read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("interrupted")))
    with pytest.raises(OSError, match="interrupted"):
        folder.save(found, tmp_path)
    assert (tmp_path / "results.nc").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["provenance.json", "results.nc"]


@pytest.mark.slow
def test_leftover_chunks_of_a_finished_folder_are_removed(found, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_datasets", lambda *_, **__: found)
    ready = ready_experiment(make())
    runner.run_ready(ready, tmp_path)
    (tmp_path / "chunks").mkdir()
    (tmp_path / "chunks" / "one.npz").touch()
    runner.run_ready(ready, tmp_path, resume=True)
    assert not (tmp_path / "chunks").exists()


def linked_chunks(home):
    """Return a results folder and the folder behind its link `chunks`, with a file of the user."""
    out, scratch = home / "out", home / "scratch"
    for path in (out, scratch):
        path.mkdir()
    (scratch / "mine.json").touch()
    (out / "chunks").symlink_to(scratch)
    return out, scratch


@pytest.mark.slow
@pytest.mark.parametrize("part", [None, Part(1, 1)])
def test_chunks_behind_a_link_are_removed_and_a_run_may_follow(tmp_path, part):
    ready, (out, scratch) = ready_experiment(make()), linked_chunks(tmp_path)
    if part is None:
        runner.run_ready(ready, out)
    else:
        runner.run_part(ready, out, part)
    assert os.listdir(scratch) == ["mine.json"]
    runner.run_ready(ready, out)  # not refused as an unfinished run
    assert os.listdir(scratch) == ["mine.json"]
    assert (out / "chunks").is_symlink()


def test_a_run_that_loads_results_removes_nothing_behind_a_link(found, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_datasets", lambda *_, **__: found)
    ready, (out, scratch) = ready_experiment(make()), linked_chunks(tmp_path)
    runner.run_ready(ready, out)
    (scratch / f"{'0' * 16}.json").touch()
    runner.run_ready(ready, out, resume=True)
    assert len(os.listdir(scratch)) == 2
