"""Reading of a results folder: all files of a run, and guarantees as objects."""

import json
import shutil
from importlib.metadata import version

import numpy as np
import pytest
import tomli_w
import xarray as xr

import fedprivjax as fpj
from fedprivjax import PrivacyGuarantee, Refusal, experiment, guarantee_of
from fedprivjax.experiment import folder
from fedprivjax.experiment import run as runner
from fedprivjax.experiment.results import Results


def make():
    return experiment.parse(
        {
            "title": "small",
            "problem": {"dataset": "least_squares", "options": {"examples": 30, "features": 3}, "radius": 2.0},
            "participation": {"machines": 6, "per_round": 3},
            "protocol": [
                {"name": "dp_mu2", "label": "ours", "grid": {"step_size": [0.1, 0.2]}},
                {"name": "noisy_sgd", "label": "free", "mu": float("inf")},
            ],
            "sweep": {"mu": [1, 2], "seeds": 2},
            "evaluation": {"select": "excess_risk"},
        }
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    into = tmp_path_factory.mktemp("results")
    folder.claim(into, make())
    found = runner.run(make())
    folder.save(found, into, "small", 1.0)
    return into, found


def test_everything_is_loaded(kept):
    into, found = kept
    results = fpj.load(into)
    assert list(results) == ["ours", "free"]
    for label, data in found.items():
        xr.testing.assert_identical(results[label], data)
    assert experiment.to_mapping(results.spec) == experiment.to_mapping(make())
    assert results.provenance == json.loads((into / "provenance.json").read_text(encoding="utf-8"))
    assert results.settings == (into / "spec.toml").read_text(encoding="utf-8")
    assert "step_size" not in results.best["ours"].dims
    said = str(results)
    for words in (str(into), "ours: 2 mu × 2 step_size × 2 seed; ε from 4.38 to", "free: 2 seed; non-private"):
        assert words in said


def test_one_file_is_enough(kept, tmp_path):
    into, found = kept
    alone = tmp_path / "alone.nc"
    alone.write_bytes((into / "results.nc").read_bytes())
    results = fpj.load(alone)
    for label, data in found.items():
        xr.testing.assert_identical(results[label], data)
    assert experiment.to_mapping(results.spec) == experiment.to_mapping(make())
    assert "step_size" not in results.best["ours"].dims
    assert results.provenance == fpj.load(into).provenance
    assert results.choices == {}
    (tmp_path / "broken.nc").write_bytes(alone.read_bytes()[:1000])
    with pytest.raises(Refusal, match=r"^\S+broken\.nc must be a file as it was written, and cannot be read: [^\n]+$"):
        fpj.load(tmp_path / "broken.nc")


def test_a_file_of_one_dataset_is_loaded_under_its_name(kept, tmp_path):
    one = kept[1]["ours"]
    one.to_netcdf(tmp_path / "mine.nc", engine="h5netcdf")
    results = fpj.load(tmp_path / "mine.nc")
    for each, label in ((results, "mine"), (one, "DPMu2"), (results["mine"], "DPMu2")):
        assert fpj.plot(each, "test_loss", "round").axes[0].lines[0].get_label().split(" ‡")[0] == label
    assert list(results) == ["mine"]
    xr.testing.assert_identical(results["mine"], one)
    assert guarantee_of(results["mine"].sel(mu=2.0, step_size=0.1)).private


def test_guarantees_are_those_of_a_sweep(kept):
    results = fpj.load(str(kept[0]))
    one = guarantee_of(results["ours"].sel(mu=2.0, step_size=0.1))
    assert isinstance(one, PrivacyGuarantee)
    assert str(one) == str(guarantee_of(kept[1]["ours"].sel(mu=2.0, step_size=0.1)))
    assert one.epsilon_at(1e-7) > one.epsilon
    assert not guarantee_of(results["free"]).private


def test_an_unknown_label_is_answered_with_the_nearest(kept):
    results = fpj.load(kept[0])
    label = next(iter(results))
    with pytest.raises(KeyError) as caught:
        results[label[:-1]]
    assert str(caught.value).startswith(f"unknown protocol label {label[:-1]!r}, did you mean {label!r}? (known: ")
    assert isinstance(caught.value, Refusal)
    assert label in results
    assert label[:-1] not in results
    assert results.get(label[:-1]) is None


def test_missing_files_are_named(kept, tmp_path):
    with pytest.raises(
        Refusal, match=r"^results folder must exist, got \S+nowhere\. Run an experiment first, such as "
    ):
        fpj.load(tmp_path / "nowhere")
    with pytest.raises(Refusal, match=r"^results folder must hold results\.nc, got \S+ without it\. Run an "):
        fpj.load(tmp_path)
    shutil.copy(kept[0] / "results.nc", tmp_path)
    results = fpj.load(tmp_path)
    assert np.array_equal(results["ours"]["mu"], [1, 2])
    with pytest.raises(Refusal, match=r"^results folder must hold spec\.toml, got \S+ without it$"):
        results.spec  # noqa: B018
    (tmp_path / "spec.toml").write_text("title = ", encoding="utf-8")
    with pytest.raises(Refusal, match=r"^\S+spec\.toml is not valid TOML: [^\n]+$"):
        fpj.load(tmp_path).spec  # noqa: B018


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["evaluation"].update(bars="sd"), "unknown key in [evaluation] 'bars' (known: "),
        (lambda raw: raw["problem"].pop("dataset"), "problem.dataset must be given"),
        (
            lambda raw: raw["sweep"].pop("mu"),
            "results of 'ours' must have the axes and values in spec.toml, got others",
        ),
        (lambda raw: raw["protocol"][0].pop("label"), "unknown protocol label 'dp_mu2'"),
    ],
)
def test_settings_of_another_version_are_refused_in_one_line(kept, tmp_path, change, message):
    raw = experiment.to_mapping(make())
    change(raw)
    shutil.copy(kept[0] / "results.nc", tmp_path)
    (tmp_path / "spec.toml").write_text(tomli_w.dumps(raw), encoding="utf-8")
    with pytest.raises(Refusal) as found:
        fpj.table(tmp_path)
    (line,) = str(found.value).splitlines()
    wrote = f"spec.toml, written by fedprivjax {version('fedprivjax')}: "
    assert line.removeprefix(wrote).startswith(message)
    assert line.startswith(wrote) is message.startswith(("unknown key", "problem.dataset"))


def test_the_line_on_another_structure_names_the_file_and_the_protocol(kept, tmp_path):
    spoilt = kept[1]["ours"].drop_vars("realised_mu")
    folder.save({"ours": spoilt}, tmp_path)
    wanted = rf"^'ours' in {tmp_path}/results\.nc: realised_mu must be a variable, got none\. [^\n]+$"
    with pytest.raises(Refusal, match=wanted):
        fpj.load(tmp_path)


def test_results_of_another_experiment_are_refused(kept, tmp_path):
    folder.claim(tmp_path, make())
    ours, free = kept[1].values()
    for found, said in (
        ({"ours": ours}, "unknown protocol label 'free'"),
        (
            {"ours": ours.isel(step_size=0), "free": free},
            r"results of 'ours' must have the axes .* got others for step_size",
        ),
        (
            {"ours": ours.assign_coords(mu=[1.0, 3.0]), "free": free},
            r"results of 'ours' must have .* got others for mu",
        ),
    ):
        folder.save(found, tmp_path)
        with pytest.raises(Refusal, match=rf"^{said}[^\n]*$"):
            fpj.load(tmp_path).best  # noqa: B018


@pytest.mark.slow
def test_a_fixed_target_beside_a_swept_noise_is_shown(tmp_path):
    raw = experiment.to_mapping(make())
    raw["protocol"] = [{"name": "dp_mu2", "label": "ours"}, {"name": "noisy_sgd", "label": "theirs", "mu": 1.0}]
    mixed = experiment.parse({**raw, "sweep": {"noise_std": [1.0, 2.0], "seeds": 2}})
    folder.claim(tmp_path, mixed)
    folder.save(runner.run(mixed), tmp_path, "small", 1.0)
    assert "theirs (target 4.38)" in str(fpj.table(tmp_path))


def test_a_linked_folder_of_choices_is_refused(kept, tmp_path):
    (tmp_path / "choice").symlink_to(kept[0])
    results = Results(tmp_path, {}, {}, "")
    vars(results)["spec"] = make().model_copy(update={"tuning": object()})
    with pytest.raises(Refusal, match=r"choice must be a folder, got a link\. Copy the folder that it names$"):
        results.choices  # noqa: B018


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        pytest.param("wall_seconds", "x", marks=pytest.mark.slow),
        ("date", [1]),
        pytest.param("fedprivjax", 3, marks=pytest.mark.slow),
        pytest.param("device", {}, marks=pytest.mark.slow),
    ],
)
def test_provenance_of_another_kind_is_refused(kept, tmp_path, name, wrong):
    text = json.dumps(fpj.load(kept[0]).provenance | {name: wrong})
    kept[1]["ours"].assign_attrs(provenance=text).to_netcdf(tmp_path / "one.nc", engine="h5netcdf")
    with pytest.raises(Refusal, match=rf"^{name} in \S+one\.nc must be a (text|number) or null, got [^\n]+$"):
        fpj.load(tmp_path / "one.nc")
