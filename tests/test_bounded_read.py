"""Files from elsewhere: whatever they declare, one line in bounded time and memory."""

import io
import json
import os
import tracemalloc
import zipfile
from time import perf_counter

import numpy as np
import pytest

from fedprivjax import Grouped, PrivacyGuarantee, Refusal, Terms
from fedprivjax.bounded_read import JSON_BYTES, Unreadable, arrays_from, json_from, json_value, toml_value

SECONDS, BYTES = 2.0, 50e6  # of reading a hostile file

JSON = {
    "lists": ("[" * 10**5, "nested"),
    "closed lists": ("[" * 10**5 + "]" * 10**5, "nested"),
    "objects": ('{"a":' * 10**5, "nested"),
    "101 lists": ("[" * 101 + "]" * 101, "nested"),
    "an integer of 401 digits": ('{"rounds": 1' + "0" * 400 + "}", "64 bits"),
    "an integer of 5000 digits": ("1" * 5000, "64 bits"),
    "no JSON": ("{", "Expecting"),
    "an open text": ('"' + '\\"' * 10**5, "Unterminated"),
}
TOML = {
    "a key of 50,000 dots": ("a" + ".a" * 50_000 + " = 1", "32 parts"),
    "a quoted key of 50,000 dots": ('"a"' + '."a"' * 50_000 + " = 1", "32 parts"),
    "a table of 50,000 dots": ("[" + "a." * 50_000 + "a]", "32 parts"),
    "an inline key of 50,000 dots": ("b = { a" + ".a" * 50_000 + " = 1 }", "32 parts"),
    "lists": ("a = " + "[" * 10**5, "nested"),
    "inline tables": ("a = " + "{ a = " * 10**5, "nested"),
    "an integer of 401 digits": ("rounds = 1" + "0" * 400, "64 bits"),
    "an integer of 5000 digits": ("rounds = 1" + "0" * 5000, "digits"),
    "no TOML": ("a = ", "Invalid"),
    "an open text": ('a = """' + '\\"' * 10**4, "Unterminated"),
}


def bounded(read, given):
    """Return the message of a refused read, which must be one line within the time and memory."""
    tracemalloc.start()
    start = perf_counter()
    try:
        with pytest.raises(Unreadable) as caught:
            read(given)
        assert perf_counter() - start < SECONDS
        assert tracemalloc.get_traced_memory()[1] < BYTES
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", JSON)
def test_hostile_json(name):
    text, why = JSON[name]
    assert why in bounded(json_value, text)


@pytest.mark.parametrize("name", TOML)
def test_hostile_toml(name):
    text, why = TOML[name]
    assert why in bounded(toml_value, text)


def test_texts_with_dots_and_brackets_are_no_keys():
    text = """
    "a.b" = "[[[[" # a comment's {{{{
    c.d = [1.5, 2.5, "it's"]
    e = '''one ''two'' "three" [ . . .
    '''
    f = \"\"\"a \\\"""b\"\"\"\"
    [[g]]
    h = { i = 1.0, j.k = 2 }
    """
    found = toml_value(text + f"l = [{', '.join(['1.5'] * 100)}]\nm = '{'.' * 100}{'[' * 200}'")
    assert (found["a.b"], found["c"], found["f"]) == ("[[[[", {"d": [1.5, 2.5, "it's"]}, 'a """b"')
    assert (found["g"][0]["h"], len(found["g"][0]["l"])) == ({"i": 1.0, "j": {"k": 2}}, 100)


@pytest.mark.parametrize("value", [3, "text", None, [[[]]], {"a": [1, -(2**63) + 1, 1e300, True]}])
def test_json_is_read_as_it_was_written(value):
    assert json_value(json.dumps(value)) == value


def test_a_file_larger_than_memory(tmp_path):
    with open(tmp_path / "run.json", "wb") as file:
        file.truncate(2**40)
    start = perf_counter()
    with pytest.raises(Unreadable, match=f"^it is larger than {JSON_BYTES} bytes$"):
        json_from(tmp_path / "run.json")
    assert perf_counter() - start < SECONDS


def member(shape="(2,)", descr="'<f8'", content=bytes(16)):
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


def archive(members, method=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return file.getvalue()


def declared(size):
    """An archive whose directory states another size of its member."""
    content = bytearray(archive({"a.npy": member()}, zipfile.ZIP_STORED))
    place = content.rindex(b"PK\x01\x02")
    content[place + 24 : place + 28] = size.to_bytes(4, "little")
    return bytes(content)


ARCHIVES = {
    "no archive": b"no zip",
    "cut short": archive({"a.npy": member()})[:-30],
    "four gigabytes": declared(2**32 - 2),
    "a bomb": archive({"a.npy": bytes(2**27)}),
    "no array": archive({"a.txt": b"text"}),
    "no header": archive({"a.npy": b"text"}),
    "a larger shape": archive({"a.npy": member("(1000000000,)")}),
    "a negative shape": archive({"a.npy": member("(-1,)")}),
    "a shape of 400 digits": archive({"a.npy": member(f"(1{'0' * 400},)")}),
    "numbers without bytes": archive({"a.npy": member("(1000000000000,)", "'<U0'", b"")}),
    "a nested header": archive({"a.npy": member("(" * 5000)}),
    "objects": archive({"a.npy": member(descr="'|O'")}),
    "fields": archive({"a.npy": member(descr="[('x', '<f8')]")}),
    "another compression": archive({"a.npy": member()}, zipfile.ZIP_BZIP2),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_hostile_archives(tmp_path, name):
    (tmp_path / "a.npz").write_bytes(ARCHIVES[name])
    bounded(arrays_from, tmp_path / "a.npz")


def test_two_members_of_one_name(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as made:
        made.writestr("a.npy", member())
        with pytest.warns(UserWarning, match="Duplicate"):
            made.writestr("a.npy", member())
    assert bounded(arrays_from, tmp_path / "a.npz") == "two members have one name"


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_arrays_are_read_as_numpy_wrote_them(tmp_path, write):
    arrays = {"a/b": np.arange(6.0).reshape(2, 3).T, "c": np.array("text"), "d": np.zeros((0, 4)), "e": np.bool_(True)}
    write(tmp_path / "a.npz", **arrays)
    found = arrays_from(tmp_path / "a.npz")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


GUARANTEE = json.loads(PrivacyGuarantee(1e-5, Terms("none", "a theorem"), mus=Grouped.of([1.0, 2.0])).to_json())
MUS = {"values": [1.0, 2.0], "counts": [1, 1], "group": [0, 1]}


@pytest.mark.parametrize(
    "spoilt",
    [
        {"delta": "x"},
        {"delta": [10**400]},
        {"terms": 3},
        {"terms": {"trust": "none", "theorem": "t", "assumptions": [{"name": "lipschitz", "values": {}}]}},
        {"mus": MUS | {"counts": [10**15, 1]}},
        {"mus": MUS | {"counts": [0, 2]}},
        {"mus": MUS | {"values": [1.0]}},
        {"mus": MUS | {"group": [0, 5]}},
        {"mus": MUS | {"values": "x"}},
        {"mus": "[" * 10**5},
    ],
    ids=range(10),
)
def test_hostile_guarantees(spoilt):
    PrivacyGuarantee.from_json(json.dumps(GUARANTEE | {"mus": MUS}))
    with pytest.raises(Refusal, match=r"^[^\n]+$") as caught:
        PrivacyGuarantee.from_json(json.dumps(GUARANTEE | spoilt))
    assert len(str(caught.value)) < 300


def test_links_and_pipes(tmp_path):
    (tmp_path / "file").write_text("1")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    assert json_from(tmp_path / "link") == 1
    for name, why in (("link", "it is a link"), ("pipe", "it is not a regular file")):
        with pytest.raises(Unreadable, match=why):
            json_from(tmp_path / name, follow=False)
