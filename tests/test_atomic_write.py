"""Files are written whole or not at all, whoever else writes, reads or ends meanwhile."""

import errno
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from time import sleep

import pytest

from fedprivjax import atomic_write
from fedprivjax.atomic_write import create_atomically, write_atomically, write_together

WRITER = """
import sys
from pathlib import Path
from fedprivjax.atomic_write import write_together
one, two = Path(sys.argv[1], "one"), Path(sys.argv[1], "two")
for turn in range(300):
    letter = sys.argv[2].encode()
    write_together({one: letter * 100_000, two: lambda file: [file.write(letter * 1000) for _ in range(100)]})
"""


def parts(folder):
    return sorted(path.name for path in folder.rglob("*") if path.name.endswith(atomic_write.PART))


@pytest.mark.slow
def test_two_processes_write_and_readers_see_whole_files_only(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    running = [subprocess.Popen([*command, letter], env=environment) for letter in "ab"]
    seen = set()
    while any(process.poll() is None for process in running):
        for path in tmp_path.glob("[!.]*"):
            seen.add(path.read_bytes())
    assert [process.wait() for process in running] == [0, 0]
    assert seen <= {b"a" * 100_000, b"b" * 100_000}
    assert sorted(os.listdir(tmp_path)) == ["one", "two"]


@pytest.mark.parametrize("times", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_threads_of_one_process_do_not_share_a_part(times, tmp_path):
    failed = []

    def write(letter):
        try:
            for _ in range(times):
                write_atomically(tmp_path / "file", letter * 5000)
        except OSError as error:
            failed.append(error)

    threads = [Thread(target=write, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert set((tmp_path / "file").read_text()) < set("abcd")
    assert len(set((tmp_path / "file").read_text())) == 1
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_removed_by_another_process_is_made_again(tmp_path):
    turns = []

    def vanish(file):
        file.write(b"content")
        if not turns:
            for path in (tmp_path / "folder").iterdir():
                path.unlink()
            (tmp_path / "folder").rmdir()
        turns.append(len(turns))

    write_atomically(tmp_path / "folder" / "file", vanish)
    assert turns == [0, 1]
    assert (tmp_path / "folder" / "file").read_bytes() == b"content"


def test_no_file_is_replaced_before_all_are_written(tmp_path, file_size_limit):
    one, two = tmp_path / "one", tmp_path / "two"
    write_together({one: "old", two: "old"})
    with file_size_limit(1000), pytest.raises(OSError, match="File too large") as caught:
        write_together({one: "new", two: b"x" * 2000})
    assert caught.value.filename == str(two)
    assert (one.read_text(), two.read_text()) == ("old", "old")
    assert parts(tmp_path) == []


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError, OSError("without a number")])
def test_a_stop_leaves_what_was_there_and_no_part(tmp_path, stop):
    path = tmp_path / "file"
    write_atomically(path, "old")

    def stopped(file):
        file.write(b"half")
        raise stop

    with pytest.raises(stop if isinstance(stop, type) else OSError):
        write_atomically(path, stopped)
    assert path.read_text() == "old"
    assert parts(tmp_path) == []


def no_hard_links(*_):
    raise OSError(errno.EPERM, "Operation not permitted")


def test_without_hard_links_one_of_several_creates_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", no_hard_links)
    with ThreadPoolExecutor(8) as threads:
        for turn in range(20):
            file = tmp_path / f"{turn}"
            made = list(threads.map(lambda number, file=file: create_atomically(file, str(number)), range(8)))
            assert made.count(True) == 1
            assert file.read_text() == str(made.index(True))
    assert parts(tmp_path) == []


def test_without_hard_links_a_process_waits_for_the_content(tmp_path, monkeypatch):
    """The name is reserved before the content is there. A failure releases it."""
    file, replace = tmp_path / "file", os.replace

    def slowly(source, target):
        if target == file:
            writer.submit(lambda: seen.append((create_atomically(file, "other"), file.read_text())))
            sleep(0.05)
        replace(source, target)

    seen: list = []
    monkeypatch.setattr(os, "link", no_hard_links)
    monkeypatch.setattr(os, "replace", slowly)
    with ThreadPoolExecutor(1) as writer:
        assert create_atomically(file, "one")
    assert seen == [(False, "one")]
    file.unlink()
    monkeypatch.setattr(os, "replace", lambda *_: no_hard_links())
    with pytest.raises(OSError, match="not permitted"):
        create_atomically(file, "one")
    assert not file.exists()


def test_what_a_killed_process_left_goes_after_a_day(tmp_path):
    old, young = tmp_path / f".1-a{atomic_write.PART}", tmp_path / f".2-b{atomic_write.PART}"
    for path in (old, young):
        path.touch()
    os.utime(old, (0, 0))
    write_atomically(tmp_path / "file", "new")
    assert sorted(os.listdir(tmp_path)) == [young.name, "file"]


def test_links_and_devices_that_the_user_names_are_written_in_place(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_atomically(link, "new", follow=True)
    assert link.is_symlink()
    assert target.read_text() == "new"
    write_atomically(Path(os.devnull), "gone", follow=True)
    assert not Path(os.devnull).is_file()


def test_a_link_or_pipe_in_a_folder_is_replaced(tmp_path):
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    os.mkfifo(pipe)
    write_together({link: "new", pipe: "new"})
    assert [path.read_text() for path in (target, link, pipe)] == ["old", "new", "new"]
    assert link.is_file()
    assert not link.is_symlink()
    assert pipe.is_file()


def test_no_other_file_of_the_package_writes_files():
    """But for examples in docstrings."""
    package = Path(atomic_write.__file__).parent
    writing = re.compile(r"^(?!\s*(?:>>>|\.\.\.)).*(\.write_(text|bytes)\(|open\([^)]*\"[wax]b?\"|os\.replace)")
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if any(map(writing.match, path.read_text(encoding="utf-8").splitlines()))
    }
    assert found == {"atomic_write.py"}
