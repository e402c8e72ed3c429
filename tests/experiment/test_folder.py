import json
import tomllib

import pytest
import xarray as xr

from fedprivjax import experiment
from fedprivjax.experiment import folder
from fedprivjax.experiment import run as runner


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


def test_provenance_names_versions_and_device(found, tmp_path):
    folder.save(found, tmp_path)
    written = json.loads((tmp_path / "provenance.json").read_text(encoding="utf-8"))
    assert written == folder.provenance()
    assert {"fedprivjax", "jax", "numpy", "python", "platform", "device"} <= written.keys()


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
    monkeypatch.setattr(folder.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("interrupted")))
    with pytest.raises(OSError, match="interrupted"):
        folder.save(found, tmp_path)
    assert (tmp_path / "results.nc").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["provenance.json", "results.nc"]
