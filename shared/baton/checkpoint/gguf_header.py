"""Reader for the head of a GGUF file: metadata and tensor table, in one pass.

Follows https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The reader of the `gguf` package
creates several array views per string, which takes many seconds for a large vocabulary; this one
reads 150,000 tokens and as many merges in a fraction of a second. It does not read tensor data.

A model may be split over files `NAME-00001-of-0000N.gguf`; the name of any of them stands for all.
"""

from __future__ import annotations

import mmap
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

from baton.errors import ModelError

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""GGUF value type to `struct` code."""
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_SWAPPED = tuple(version << 24 for version in _VERSIONS)
"""Versions of big-endian files."""
_ALIGNMENT = 32
"""Default alignment of tensor data in bytes."""
_BEYOND = "a string reaches beyond the end"
_BIG_ENDIAN = "it is big-endian; convert it again without --bigendian"
_PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")
_MAX_DIMS = 4
_MAX_DEPTH = 4
"""Maximum nesting of arrays; the format sets no limit."""


class TensorEntry(NamedTuple):
    """One row of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """In elements, outermost dimension first."""
    kind: int
    """GGML type number."""
    offset: int
    """Bytes from the start of the file."""
    part: int = 0
    """The file in `split_parts` that holds it."""


class Head(NamedTuple):
    """Metadata and tensor table: everything before the tensor data."""

    metadata: dict[str, Any]
    tensors: tuple[TensorEntry, ...]


def split_parts(path: Path) -> list[Path]:
    """The files of a split model in order, given any of them; of another model its one file."""
    if (name := _PART.fullmatch(path.name)) is None:
        return [path]
    stem, count = name["stem"], name["count"]
    numbers = range(1, max(1, int(count)) + 1)
    return [path.with_name(f"{stem}-{number:05}-of-{count}.gguf") for number in numbers]


def read_metadata(path: Path) -> dict[str, Any]:
    """All metadata of a GGUF file by key. Raises `ModelError` if it is not a GGUF file."""
    return _read(split_parts(path)[0]).metadata


def read_head(path: Path) -> Head:
    """Metadata and tensor table of a GGUF file, of a split model those of all its files.

    Raises:
        ModelError: it is not a GGUF file, or one of a split model is missing.
    """
    paths = split_parts(path)
    heads = [_read(part) for part in paths]
    if (heads[0].metadata.get("split.count") or 1) != len(paths):
        raise ModelError(
            f"{path.name} is one file of a split GGUF. Give its files the names that "
            "llama-gguf-split wrote (NAME-00001-of-0000N.gguf), or join them with --merge."
        )
    tensors = (
        entry._replace(part=part) for part, head in enumerate(heads) for entry in head.tensors
    )
    return Head(heads[0].metadata, tuple(tensors))


def _read(path: Path) -> Head:
    """Read the head of one file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).head()
    except (OSError, ValueError, struct.error) as error:
        raise ModelError(f"{path.name} cannot be read as GGUF: {error}.") from error


class _Reader:
    """A position in the file. Raises `ValueError` or `struct.error` for broken content."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def head(self) -> Head:
        magic, version, num_tensors, num_pairs = self._unpack("4sIQQ")
        if magic == b"GGUF" and version in _SWAPPED:
            raise ValueError(_BIG_ENDIAN)
        if magic != b"GGUF" or version not in _VERSIONS:
            raise ValueError("it is not a GGUF file of version 2 or 3")
        metadata = dict(self._pair() for _ in range(num_pairs))
        entries = [self._entry() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError("its alignment is not a positive number")
        start = -(-self._at // alignment) * alignment
        tensors = tuple(entry._replace(offset=start + entry.offset) for entry in entries)
        return Head(metadata, tensors)

    def _entry(self) -> TensorEntry:
        name, num_dims = self._string(), self._number("I")
        if num_dims > _MAX_DIMS:
            raise ValueError(f"tensor {name} has {num_dims} dimensions")
        shape = self._unpack(f"{num_dims}Q")[::-1]
        kind, offset = self._unpack("IQ")
        return TensorEntry(name, shape, kind, offset)

    def _pair(self) -> tuple[str, Any]:
        key = self._string()
        return key, self._value(self._number("I"))

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(depth)
        if kind not in _SCALARS:
            raise ValueError(f"value type {kind} is unknown")
        return self._number(_SCALARS[kind])

    def _array(self, depth: int) -> list[Any]:
        kind, count = self._unpack("IQ")
        if depth >= _MAX_DEPTH or count > len(self._data):
            raise ValueError("an array is too deep or too long")
        if kind in _SCALARS:
            return list(self._unpack(f"{count}{_SCALARS[kind]}"))
        if kind == _STRING:
            return self._strings(count)
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _strings(self, count: int) -> list[str]:
        """Read many strings at once, four times as fast as with `_string`: a vocabulary has
        hundreds of thousands."""
        data, at, size_at = self._data, self._at, struct.Struct("<Q").unpack_from
        strings, end = list[str](), len(data)
        for _ in range(count):
            start = at + 8
            at = start + size_at(data, at)[0]
            if at > end:
                raise ValueError(_BEYOND)
            strings.append(data[start:at].decode())
        self._at = at
        return strings

    def _string(self) -> str:
        size = self._number("Q")
        self._at += size
        if self._at > len(self._data):
            raise ValueError(_BEYOND)
        return self._data[self._at - size : self._at].decode()

    def _number(self, code: str) -> Any:
        return self._unpack(code)[0]

    def _unpack(self, codes: str) -> tuple[Any, ...]:
        layout = f"<{codes}"
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values
