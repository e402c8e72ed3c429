import hashlib
import os
import subprocess
import tomllib
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import xarray as xr

from fedprivjax import Refusal, experiment
from fedprivjax.experiment import folder
from fedprivjax.experiment import run as runner
from fedprivjax.experiment.provenance import checksums, commit, provenance

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


def test_what_is_saved_is_what_is_loaded(found, tmp_path):
    folder.save(found, tmp_path)
    loaded = folder.load(tmp_path)
    assert list(loaded) == list(found) == ["DP-μ²-FL, ours", "noisy_sgd"]
    for label, data in found.items():
        xr.testing.assert_identical(loaded[label], data)
        assert {name: v.dtype for name, v in loaded[label].items()} == {name: v.dtype for name, v in data.items()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["provenance.json", "results.nc"]


def test_provenance_names_versions_machine_date_and_data(found, tmp_path):
    folder.save(found, tmp_path, "small", 12.3456)
    written = folder.load_provenance(tmp_path)
    again = provenance(found, 12.3456)
    assert written.keys() == again.keys()
    assert {name for name in written if written[name] != again[name]} <= {"date"}
    assert {"fedprivjax", "jax", "jaxlib", "numpy", "python", "platform", "device", "cpu", "commit"} <= written.keys()
    assert written["wall_seconds"] == 12.346
    assert abs(datetime.now(UTC) - datetime.fromisoformat(written["date"])) < timedelta(minutes=5)
    problem = experiment.make_problem(make().problem, 6)
    features = hashlib.sha256(np.asarray(problem.pool.features).tobytes()).hexdigest()
    assert written["data_sha256"]["training.features"] == features


def test_the_commit_is_that_of_the_checkout_and_marked_where_files_differ(tmp_path):
    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(["git", "-C", tmp_path, *identity, *words], capture_output=True, text=True, check=True)

    assert commit(tmp_path) is None
    git("init")
    assert commit(tmp_path) is None  # of nothing yet
    (tmp_path / "file").write_text("one", encoding="utf-8")
    git("add", "file")
    git("commit", "-m", "first")
    head = git("rev-parse", "HEAD").stdout.strip()
    assert commit(tmp_path) == head
    (tmp_path / "file").write_text("two", encoding="utf-8")
    assert commit(tmp_path) == head + "+"


def test_trials_have_checksums_of_their_own():
    data = [xr.Dataset(attrs={"data": text}) for text in ('{"training": "a"}\n{"training": "b"}', '{"training": "a"}')]
    assert checksums({"ours": data[0], "theirs": data[1]}) == {"training": ["a", "b"]}
    assert checksums({"theirs": data[1]}) == {"training": "a"}


def test_the_root_says_where_to_look(found, tmp_path):
    folder.save(found, tmp_path, "small")
    with xr.open_dataset(tmp_path / "results.nc", engine="h5netcdf") as root:
        assert root.attrs["title"] == "small"
        assert list(root.attrs["groups"]) == list(found)
        assert "open_datatree" in root.attrs["how_to_open"]
        assert "fedprivjax.load" in root.attrs["how_to_open"]
        assert {"fedprivjax", "date"} <= root.attrs.keys()


def test_every_variable_is_described(found, tmp_path):
    folder.save(found, tmp_path)
    for data in folder.load(tmp_path).values():
        for name, variable in data.variables.items():
            assert variable.attrs["long_name"], name
            assert variable.attrs["units"] == UNITS.get(str(name), "1"), name
    excess = found["noisy_sgd"]["distance"]
    assert (excess.attrs["valid_min"], excess.attrs.get("valid_max")) == (0.0, None)


@pytest.mark.parametrize("content", [b"", b"no netCDF", None])
def test_broken_results_are_refused_in_one_line(found, tmp_path, content):
    folder.save(found, tmp_path)
    file = tmp_path / "results.nc"
    file.write_bytes(file.read_bytes()[:3000] if content is None else content)
    with pytest.raises(Refusal, match=r"^\S+results\.nc must be a file as it was written, and cannot be read: [^\n]+$"):
        folder.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "why"), [(b"{", "cannot be read"), (b"\xff", "cannot be read"), (b"[]", "got list")]
)
def test_a_broken_provenance_is_refused_in_one_line(found, tmp_path, content, why):
    folder.save(found, tmp_path)
    (tmp_path / "provenance.json").write_bytes(content)
    with pytest.raises(Refusal, match=rf"^\S+provenance\.json must be [^\n]*{why}[^\n]*$"):
        folder.load_provenance(tmp_path)


def test_a_claim_keeps_the_settings_and_may_be_repeated(tmp_path):
    into = tmp_path / "deep" / "er"
    for _ in range(2):
        folder.claim(into, make())
        assert [path.name for path in into.iterdir()] == ["spec.toml"]
        assert experiment.parse(tomllib.loads((into / "spec.toml").read_text(encoding="utf-8"))) == make()


@pytest.mark.parametrize("content", [None, b"title = ", b"\xff"])
def test_a_claim_refuses_what_was_made_with_other_settings(tmp_path, content):
    folder.claim(tmp_path, make(mu=[1, 4]))
    spec = tmp_path / "spec.toml"
    if content is not None:
        spec.write_bytes(content)
    before = spec.read_bytes()
    with pytest.raises(ValueError, match="holds results of different settings: choose another with --out"):
        folder.claim(tmp_path, make())
    assert spec.read_bytes() == before


@pytest.mark.parametrize("below", ["", "deeper", "deeper/still"])
def test_a_claim_refuses_a_folder_that_cannot_be_written(tmp_path, below):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^results folder \S+ must be writable: [^\n]+$"):
        folder.claim(tmp_path / "file" / below, make())
    assert (tmp_path / "file").read_text(encoding="utf-8") == "in the way"


def test_a_write_that_breaks_off_leaves_nothing(found, tmp_path, monkeypatch):
    def half(_, path, **options):
        path.write_bytes(b"half of it")
        raise OSError("disk full")

    monkeypatch.setattr(xr.DataTree, "to_netcdf", half)
    with pytest.raises(OSError, match="disk full"):
        folder.save(found, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_breaks_off_keeps_what_was_there(found, tmp_path, monkeypatch):
    folder.save(found, tmp_path)
    before = (tmp_path / "results.nc").read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("interrupted")))
    with pytest.raises(OSError, match="interrupted"):
        folder.save(found, tmp_path)
    assert (tmp_path / "results.nc").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["provenance.json", "results.nc"]
