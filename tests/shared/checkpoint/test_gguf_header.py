"""Reading the head of GGUF files, good and broken."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.checkpoint.gguf_header import read_head, read_metadata, split_parts
from baton.errors import ModelError

BIG_ENDIAN = struct.pack(">4sIQQ", b"GGUF", 3, 0, 0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("a.string", "grüße")
    writer.add_bool("a.bool", True)
    writer.add_int32("an.int", -5)
    writer.add_uint64("a.long", 1 << 40)
    writer.add_float32("a.float", 0.5)
    writer.add_array("strings", ["a", "", "ç"])
    writer.add_array("floats", [0.25, -1.0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_every_kind_of_value(file: Path) -> None:
    assert read_metadata(file) == {
        "general.architecture": "llama",
        "a.string": "grüße",
        "a.bool": True,
        "an.int": -5,
        "a.long": 1 << 40,
        "a.float": 0.5,
        "strings": ["a", "", "ç"],
        "floats": [0.25, -1.0],
    }


def test_agrees_with_the_reference_reader(smollm2: Path) -> None:
    ours = read_metadata(smollm2)
    fields = gguf.GGUFReader(smollm2).fields
    theirs = {key: f.contents() for key, f in fields.items() if not key.startswith("GGUF.")}
    assert ours == theirs


@settings(max_examples=60)
@given(st.data())
def test_a_cut_or_scribbled_file_is_refused(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        good = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 8, 2)
        good += struct.pack("<Q2sQ1s", 2, b"ab", 1, b"c")
        path.write_bytes(good)
        assert read_metadata(path) == {"k": ["ab", "c"]}
        path.write_bytes(good[: data.draw(st.integers(0, len(good) - 1))])
        with pytest.raises(ModelError, match=r"x\.gguf cannot be read as GGUF"):
            read_metadata(path)


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("<4sIQQ", b"GGML", 3, 0, 0),
        BIG_ENDIAN,
        struct.pack("<4sIQQ", b"GGUF", 1, 0, 0),
        struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"k", 77),
        struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 8, 1 << 60),
    ],
    ids=["magic", "big-endian", "version 1", "unknown type", "huge array"],
)
def test_what_is_not_gguf_is_refused(head: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(head)
    why = "it is big-endian" if head == BIG_ENDIAN else ""
    with pytest.raises(ModelError, match=f"cannot be read as GGUF: {why}"):
        read_metadata(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        read_metadata(tmp_path / "none.gguf")


@pytest.mark.parametrize(("alignment", "per_file"), [(32, 0), (64, 0), (32, 1)])
def test_the_table_of_tensors(tmp_path: Path, alignment: int, per_file: int) -> None:
    """Of one file, and of a split model by the name of its last one."""
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama", split_max_tensors=per_file)
    writer.add_custom_alignment(alignment)
    values = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(5, np.float16)}
    for name, value in values.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files = sorted(tmp_path.iterdir())
    assert split_parts(files[-1]) == files
    data = [path.read_bytes() for path in files]
    for entry, (name, value) in zip(read_head(files[-1]).tensors, values.items(), strict=True):
        assert (entry.name, entry.shape) == (name, value.shape)
        stored = data[entry.part][entry.offset :]
        assert stored[: value.nbytes] == value.tobytes()
    assert read_metadata(files[-1])["general.alignment"] == alignment
    if per_file:
        files[0].rename(tmp_path / "alone.gguf")
        with pytest.raises(ModelError, match="one file of a split GGUF"):
            read_head(tmp_path / "alone.gguf")
        with pytest.raises(ModelError, match=r"00001-of-00002\.gguf cannot be read"):
            read_head(files[1])
