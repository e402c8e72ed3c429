"""Results files from elsewhere: no numbers of other files, and no more time and memory than a file's size allows."""

import os
import resource
import zlib
from time import perf_counter

import h5py
import numpy as np
import pytest
import xarray as xr
from h5py import h5d, h5p, h5s, h5t
from small_results import small_results

from fedprivjax import Refusal
from fedprivjax.experiment import folder
from fedprivjax.sweeps.schema import SHOWN, custom_metrics

SECONDS, BYTES = 3.0, 300e6  # of reading a hostile file
EXTERNAL, HUGE = "secret", (24 * 2**30,)


def external_storage(root):
    root.create_dataset("loss", (4,), "u1", external=[(EXTERNAL, 0, 4)])


def external_link(root):
    root["loss"] = h5py.ExternalLink("other.nc", "/loss")


def soft_link(root):
    root["loss"] = h5py.SoftLink("/group/loss")


def virtual_dataset(root):
    layout = h5py.VirtualLayout((4,), "u1")
    layout[:] = h5py.VirtualSource("other.nc", "loss", (4,))
    root.create_virtual_dataset("loss", layout)


def cycle(root):
    root["group"]["again"] = root["group"]


def two_names(root):
    root["again"] = root["group/loss"]


def deep(root):
    for _ in range(1500):
        root = root.create_group("in")


def huge(root):
    root.create_dataset("loss", HUGE, "u1")


def many_huge(root):
    for index in range(40):
        root.create_dataset(f"loss{index}", (2**21,), "u1", chunks=(100,))


def huge_chunk(root):
    root.create_dataset("loss", (1,), "u1", maxshape=(None,), chunks=(2**31,))


def bomb(root):
    made = root.create_dataset("loss", (1000,), "u1", chunks=(1000,), compression="gzip")
    made.id.write_direct_chunk((0,), zlib.compress(bytes(2**26), 1))


def other_compression(root):
    root.create_dataset("loss", data=np.zeros(1000), chunks=(1000,), compression="lzf")


def named_type(root):
    root["type"] = np.dtype("f8")


def lists(root):
    root.create_dataset("loss", (4,), h5py.vlen_dtype(np.int32))


def repeated_text(root):
    """One text of 1 MB that 4000 elements share, which h5py cannot write."""
    space, made = h5s.create_simple((4000,)), h5p.create(h5p.DATASET_CREATE)
    made.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    h5d.create(root.id, b"loss", h5t.py_create(h5py.string_dtype(), logical=True), space, dcpl=made)
    root["loss"][0] = "x" * 2**20
    place, path = root["loss"].id.get_offset(), root.filename
    root.close()
    with open(path, "r+b") as file:
        file.seek(place)
        one = file.read(16)
        file.seek(place)
        file.write(4000 * one)


def many_attributes(root):
    for index in range(4000):
        root.attrs[f"attribute {index}"] = 1


def attribute_of_texts(root):
    root.attrs["a"] = "x" * 2**20
    root.attrs["b"] = ["x"] * 200


HOSTILE = {
    external_storage: "stores numbers in another file",
    virtual_dataset: "stores numbers in another file",
    external_link: "link",
    soft_link: "link",
    cycle: "two names",
    two_names: "two names",
    deep: "nested",
    huge: "declares more",
    many_huge: "declares more",
    huge_chunk: "declares more",
    bomb: "expands",
    other_compression: "deflate",
    named_type: "neither",
    lists: "neither",
    repeated_text: "declares more",
    attribute_of_texts: "too many texts",
    many_attributes: "an object with more than 1000",
}


@pytest.mark.parametrize("text", ["[" * 10**5, "{}", "[]", '{"shown": 1}'])
def test_a_metrics_attribute_that_no_run_has_written_is_refused(text):
    data = xr.Dataset({"loss": ((), 1.0, {SHOWN: text})})
    with pytest.raises(Refusal, match=r"^\w+ of 'loss' must be as a run writes it, got "):
        custom_metrics([data])


def written(path, spoil=lambda root: None):
    data = small_results().assign(loss=("seed", [1.0, 2.0])).assign_attrs(words=["one", "two"])
    tree = xr.DataTree.from_dict({"/": xr.Dataset(), "group": data})
    tree.to_netcdf(path, engine="h5netcdf")
    with h5py.File(path, "r+") as root:
        spoil(root)
    return path


@pytest.mark.parametrize("spoil", HOSTILE, ids=lambda spoil: spoil.__name__)
def test_a_hostile_file_is_refused_in_one_line(tmp_path, monkeypatch, spoil):
    monkeypatch.chdir(tmp_path)
    (tmp_path / EXTERNAL).write_bytes(b"data")
    path = written(tmp_path / "results.nc", spoil)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, perf_counter()
    with pytest.raises(Refusal, match=rf"^\S+results.nc must be [^\n]*{HOSTILE[spoil]}[^\n]*$"):
        folder.load_file(path)
    assert perf_counter() - start < SECONDS
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < BYTES


@pytest.mark.parametrize("compressed", [False, True])
def test_a_good_file_is_read(tmp_path, compressed):
    data = small_results(np.arange(6000.0).reshape(2, 1, 3000))
    encoding = {"test_loss": {"zlib": True, "fletcher32": True}} if compressed else {}
    data.to_netcdf(tmp_path / "one.nc", engine="h5netcdf", encoding=encoding)
    (found, _) = folder.load_file(tmp_path / "one.nc")
    xr.testing.assert_equal(found["one"], data)


def test_a_link_is_read_if_the_user_names_it_and_not_in_a_folder(tmp_path):
    path = written(tmp_path / "elsewhere.nc")
    (tmp_path / "results.nc").symlink_to(path)
    assert list(folder.load_file(tmp_path / "results.nc")[0]) == ["group"]
    (tmp_path / "spec.toml").symlink_to(path)
    for name, load in (("results.nc", folder.read), ("spec.toml", folder.load_settings)):
        with pytest.raises(Refusal, match=f"{name} must be .*: it is a link$"):
            load(tmp_path)


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "results.nc")
    with pytest.raises(Refusal, match=r"results\.nc must be .*: it is not a regular file$"):
        folder.load_file(tmp_path / "results.nc")
