"""Limits on an HDF5 file from elsewhere, such as a netCDF file, checked before it is read.

HDF5 can store numbers in other files, link objects in circles, and declare far more numbers than a file holds.
"""

import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5p, h5s, h5t, h5z  # type: ignore[attr-defined]  # without stubs

from fedprivjax.bounded_read import SLACK, Unreadable, allowed_bytes, opened, unreadable

DEPTH, OBJECTS = 16, 50_000  # of groups within groups, and in a file
OWN_ATTRIBUTES, ATTRIBUTES = 1000, 200_000  # of an object, for which HDF5 takes quadratic time, and of all together
FILTERS = (h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32)
PLAIN = (h5t.INTEGER, h5t.FLOAT, h5t.STRING, h5t.ENUM)  # classes of types of datasets
HEAP = b"GCOL\x01\0\0\0"  # first bytes of a collection of texts, before its size
SIZE = struct.Struct("<Q")
SPARE = 64  # bytes of checksums in a chunk


Members = Mapping[bytes, "Members | None"]  # of a group, and the members of each, or None for all of them


def require_bounded(file: Path, *, follow: bool = True, only: Members | None = None) -> None:
    """Raise Unreadable unless an HDF5 file holds all of its numbers, and declares few for its size.

    It must have no external storage, no virtual datasets, no external or soft links and no object with two names.

    Args:
        follow: as in `bounded_read.opened`.
        only: members of the file to check, or None for all of them.

    Raises:
        OSError: if the file cannot be opened.
    """
    with opened(file, follow=follow) as content, unreadable():
        size = content.seek(0, os.SEEK_END)
        longest = _longest_text(content.fileno(), size)
        with h5py.File(file, "r") as root:
            _Walk(size, longest).group(root.id, 0, only)


class _Walk:
    """Counts of the objects and bytes of a file, compared with their limits on the way."""

    def __init__(self, size: int, longest: int):
        self.limit, self.longest = allowed_bytes(size), longest
        self.objects, self.attributes, self.bytes = 0, 0, 0
        self.seen: set[int] = set()

    def group(self, group: h5g.GroupID, depth: int, only: Members | None) -> None:
        """Check a group and everything in it, or only some members."""
        self._once(group)
        names = group if only is None else only
        if depth > DEPTH or self.objects + len(names) > OBJECTS:
            raise Unreadable(f"it has more than {OBJECTS} objects, or groups that are nested more than {DEPTH} deep")
        for name in names:
            if group.links.get_info(name).type != h5l.TYPE_HARD:
                raise Unreadable("it has a link to another object or file")
            each = h5o.open(group, name)
            if isinstance(each, h5g.GroupID):
                self.group(each, depth + 1, None if only is None else only[name])
            elif isinstance(each, h5d.DatasetID):
                self._once(each)
                self._dataset(each)
            else:
                raise Unreadable("it has an object that is neither a group nor a dataset")

    def _once(self, each: h5g.GroupID | h5d.DatasetID) -> None:
        """Count an object and its attributes."""
        place = h5o.get_info(each).addr
        if place in self.seen:
            raise Unreadable("it has an object with two names")
        self.seen.add(place)
        self.objects += 1
        self.attributes += (own := h5a.get_num_attrs(each))
        if own > OWN_ATTRIBUTES or self.attributes > ATTRIBUTES:
            raise Unreadable(f"it has more than {ATTRIBUTES} attributes, or an object with more than {OWN_ATTRIBUTES}")
        names: list[bytes] = []
        h5a.iterate(each, names.append)
        for name in names:
            self._attribute(h5a.open(each, name))

    def _attribute(self, each: h5a.AttrID) -> None:
        """Count the bytes of an attribute, after its largest possible size."""
        points, kind = prod(each.shape), each.get_type()
        if not _varies(kind):
            self._count(points * kind.get_size())
        elif points * self.longest > SLACK:
            raise Unreadable("it has an attribute of too many texts")
        elif points:
            values = np.empty(each.shape, each.dtype)
            each.read(values)
            self._count(_bytes_of(values))

    def _dataset(self, each: h5d.DatasetID) -> None:
        """Count the bytes of a dataset. Its texts are read in parts that fit into memory, whatever they are."""
        made, kind, points = each.get_create_plist(), each.get_type(), prod(each.shape)
        if made.get_layout() == h5d.VIRTUAL or made.get_external_count():
            raise Unreadable("it stores numbers in another file")
        if kind.get_class() not in PLAIN:
            raise Unreadable("it has a dataset that holds neither numbers nor texts")
        self._count(points * kind.get_size())
        if made.get_layout() == h5d.CHUNKED:
            self._chunks(each, made, kind.get_size())
        if not _varies(kind):
            return
        part = max(1, SLACK // max(1, self.longest))
        for start in range(0, points, part):
            self._count(_bytes_of(_elements(each, start, min(start + part, points))))

    def _chunks(self, each: h5d.DatasetID, made: h5p.PropDCID, size: int) -> None:
        """Check the size of a dataset's chunks, and that none expands to more when it is read."""
        filters = [made.get_filter(index)[0] for index in range(made.get_nfilters())]
        if not set(filters) <= set(FILTERS) or len(set(filters)) < len(filters):
            raise Unreadable("it is compressed by another method than deflate")
        size *= prod(made.get_chunk())
        if size > self.limit:
            raise Unreadable(f"it declares more than the allowed {self.limit} bytes")
        if h5z.FILTER_DEFLATE in filters:
            each.chunk_iter(lambda chunk: _require_small(each, chunk, size + SPARE))

    def _count(self, more: int) -> None:
        self.bytes += more
        if self.bytes > self.limit:
            raise Unreadable(f"it declares more than the allowed {self.limit} bytes")


def _require_small(each: h5d.DatasetID, chunk: h5d.StoreInfo, size: int) -> None:
    """Raise Unreadable if a compressed chunk expands to more than `size` bytes."""
    skipped, content = each.read_direct_chunk(chunk.chunk_offset)
    if not skipped and (expanding := zlib.decompressobj()).decompress(content, size) and expanding.unconsumed_tail:
        raise Unreadable(f"it has a chunk that expands to more than {size} bytes")


def _elements(each: h5d.DatasetID, start: int, stop: int) -> np.ndarray:
    """Return elements of a dataset in the order of its places."""
    values = np.empty(stop - start, each.dtype)
    if not each.shape:
        each.read(h5s.ALL, h5s.ALL, values.reshape(()))
        return values
    chosen = each.get_space()
    chosen.select_elements(np.stack(np.unravel_index(np.arange(start, stop), each.shape), axis=1))
    each.read(h5s.create_simple(values.shape), chosen, values)
    return values


def _bytes_of(values: np.ndarray) -> int:
    """Return the bytes of texts, or of lists of references."""
    return sum(8 * len(each) if isinstance(each, np.ndarray) else len(each or b"") for each in values.ravel())


def _varies(kind: h5t.TypeID) -> bool:
    """Return True if values of a type have different lengths."""
    if kind.get_class() == h5t.COMPOUND:
        return any(_varies(kind.get_member_type(index)) for index in range(kind.get_nmembers()))
    if kind.get_class() == h5t.ARRAY:
        return _varies(kind.get_super())
    return kind.get_class() == h5t.VLEN or (kind.get_class() == h5t.STRING and kind.is_variable_str())


def _longest_text(descriptor: int, size: int) -> int:
    """Return a bound on the length of the texts of a file in bytes: the largest collection of texts."""
    longest, place = 0, -1
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as content:
        while (place := content.find(HEAP, place + 1)) >= 0:
            declared = content[place + len(HEAP) : place + len(HEAP) + SIZE.size]
            longest = max(longest, *SIZE.unpack(declared)) if len(declared) == SIZE.size else longest
    return min(longest, size)
