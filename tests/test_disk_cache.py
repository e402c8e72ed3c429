"""The disk cache: found again by everything that a file depends on, never trusted, never in the way."""

import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pooch
import pytest

from fedprivjax import disk_cache
from fedprivjax.disk_cache import cache_folder, cached, cached_file, code_digest, digest, keep_compiled, read, try_write

COMPILED = "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "TF_CPP_MIN_LOG_LEVEL"


@pytest.fixture
def folder(keeping):
    return keeping


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


class Maker:
    """Makes an array, and counts how often."""

    def __init__(self, array=None):
        self.array, self.calls = np.arange(3.0) if array is None else array, 0

    def __call__(self):
        self.calls += 1
        return self.array


def found(maker, *said, good=lambda array: True):
    return cached("kind", said or ("said",), maker, good)


def test_it_is_computed_once(folder):
    maker = Maker()
    np.testing.assert_array_equal(found(maker), found(maker))
    assert maker.calls == 1
    assert [path.parent for path in files(folder)] == [folder / "kind"]


def test_what_is_soon_computed_is_not_kept(folder, monkeypatch):
    monkeypatch.setattr(disk_cache, "SLOW", 60.0)
    found(Maker())
    assert files(folder) == []


def test_the_folder_is_that_of_downloads_or_another_or_none(monkeypatch):
    monkeypatch.delenv(disk_cache.CACHE)
    assert cache_folder() == Path(pooch.os_cache("fedprivjax"))
    monkeypatch.setenv(disk_cache.CACHE, "elsewhere")
    assert cache_folder() == Path("elsewhere")
    monkeypatch.setenv(disk_cache.CACHE, "")
    assert cache_folder() is None
    maker = Maker()
    found(maker), found(maker)
    assert maker.calls == 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"FEDPRIVJAX_CACHE": "folder"}, [str(Path("folder", "compiled")), "0.2", "3"]),
        ({"FEDPRIVJAX_CACHE": "folder", COMPILED[0]: "other", COMPILED[1]: "1"}, ["other", "1", "3"]),
        ({"FEDPRIVJAX_CACHE": ""}, [None, None, None]),
    ],
)
def test_settings_of_jaxs_cache_are_those_of_the_environment_if_it_has_any(monkeypatch, given, expected):
    environment = {name: value for name, value in os.environ.items() if name not in COMPILED} | given
    monkeypatch.setattr(os, "environ", environment)
    keep_compiled()
    assert [environment.get(name) for name in COMPILED] == expected


@pytest.mark.parametrize(
    "other",
    [
        (np.zeros((3, 2)), 1.0, "a"),
        (np.zeros((2, 3), np.float32), 1.0, "a"),
        (np.full((2, 3), 1e-300), 1.0, "a"),
        (np.zeros((2, 3)), np.nextafter(1.0, 2.0).item(), "a"),
        (np.zeros((2, 3)), 1.0, "b"),
        (np.zeros((2, 3)), 1.0),
    ],
)
def test_every_part_is_in_the_name(other):
    said = np.zeros((2, 3)), 1.0, "a"
    assert digest(*said) == digest(*said) != digest(*other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros((0, 3)), np.zeros((3, 0))),
        (jnp.bfloat16(1).__array__(), jnp.bfloat16(2).__array__()),
        (np.arange(6).reshape(2, 3).T, np.arange(6).reshape(3, 2)),
        (np.float64(1).__array__(), np.array([1.0])),
    ],
    ids=["empty", "bfloat16", "transposed", "scalar"],
)
def test_digests_of_unusual_arrays(one, other):
    assert digest(one) == digest(one.copy()) != digest(other)


def test_digests_are_what_they_were():
    """Computed features of a gigabyte are found by them."""
    expected = "7a71ef561deef1a4e9b92fd1942978ee7617de4b989545d0d45865d681cdefda"
    assert digest([("a", "b")], (2, 2, 1), "code", np.arange(4, dtype=np.float32)) == expected


def test_code_and_versions_are_in_the_name(tmp_path):
    (tmp_path / "inner").mkdir()
    one, two = tmp_path / "one.py", tmp_path / "inner" / "two.py"
    one.write_text("x = 1")
    two.write_text("x = 2")

    def now(**options):
        code_digest.cache_clear()
        return code_digest(tmp_path, **options)

    before, without = now(), now(exclude=("two",))
    assert now() == before
    assert len({before, without, now(packages=("numpy",)), now(packages=("scipy",))}) == 4
    two.write_text("x = 3")
    assert now() != before
    assert now(exclude=("two",)) == without


@pytest.mark.parametrize("name", ["missing", "empty", "file.py"])
def test_code_must_be_a_folder_of_python_files(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.py").write_text("x = 1")
    with pytest.raises(FileNotFoundError, match=rf"^folders must hold Python files, got .*{name}$"):
        code_digest(tmp_path, tmp_path / name)


@pytest.mark.slow
def test_a_file_with_any_byte_of_its_header_damaged_is_computed_anew_or_right(folder):
    maker = Maker()
    found(maker)
    (path,) = files(folder)
    whole = path.read_bytes()
    for at in range(128):
        for byte in ((0, 10, 40, 0xFF)[at % 4], whole[at] ^ 1):
            path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
            again = found(maker, good=lambda array: array.shape == (3,) and (array == maker.array).all())
            np.testing.assert_array_equal(again, maker.array)


@pytest.mark.parametrize("kept_bytes", [0, 5, 100, -1])
def test_a_file_that_ends_early_is_written_anew(folder, kept_bytes):
    maker = Maker()
    found(maker)
    (path,) = files(folder)
    whole = path.read_bytes()
    path.write_bytes(whole[:kept_bytes])
    np.testing.assert_array_equal(found(maker), maker.array)
    assert path.read_bytes() == whole


def test_what_is_not_good_is_computed_anew_and_replaced(folder):
    found(Maker(np.array([1.0])))
    maker = Maker(np.array([2.0]))
    assert found(maker, good=lambda array: array[0] == 2).tolist() == [2.0]
    assert found(maker, good=lambda array: array[0] == 2).tolist() == [2.0]
    assert maker.calls == 1


def test_without_a_place_to_write_nothing_is_kept_and_nothing_said(tmp_path, monkeypatch, capsys):
    place = tmp_path / "file"
    place.write_text("no folder")
    monkeypatch.setenv(disk_cache.CACHE, str(place))
    monkeypatch.setattr(disk_cache, "SLOW", 0.0)
    np.testing.assert_array_equal(found(Maker()), np.arange(3.0))
    assert files(tmp_path) == [place]
    assert capsys.readouterr() == ("", "")


def test_a_folder_that_may_not_be_written_is_left_as_it_is(folder, monkeypatch):
    def refused(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    np.testing.assert_array_equal(found(Maker()), np.arange(3.0))
    assert files(folder) == []


def test_a_full_disk_and_a_stop_leave_no_part_of_a_file(folder):
    path = cached_file(folder, "kind", ("said",))

    def full(file):
        file.write(b"part")
        raise OSError(28, "No space left on device")

    def stopped(file):
        file.write(b"part")
        raise KeyboardInterrupt

    assert not try_write(path, full)
    with pytest.raises(KeyboardInterrupt):
        try_write(path, stopped)
    assert files(folder) == []


WRITER = """
import sys, numpy as np
from pathlib import Path
from fedprivjax.disk_cache import read, try_write
path = Path(sys.argv[1])
for turn in range(150):
    value = float(turn)
    assert try_write(path, lambda file: np.save(file, np.full(20_000, value)))
    found = read(path)
    assert found is not None and (found == found[0]).all()
"""


@pytest.mark.slow
def test_several_processes_share_a_folder_and_see_whole_files_only(tmp_path):
    path = tmp_path / "kind" / "one.npy"
    command = [sys.executable, "-c", WRITER, str(path)]
    running = [subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}) for _ in range(2)]
    assert [process.wait(60) for process in running] == [0, 0]
    assert read(path) is not None
    assert files(tmp_path) == [path]
