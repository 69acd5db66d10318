"""JSON files beside a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.checkpoint.json_file import LARGEST, read_json, readable_fields
from baton.errors import ModelError


def test_an_object_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": [1, "\u00e9"]}', encoding="utf-8")
    assert read_json(tmp_path / "x.json") == {"a": [1, "\u00e9"]}


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"[]", "must hold a JSON object"), (b"{", "cannot be read"), (b"\xff", "cannot be read")],
)
def test_anything_else_is_an_error(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ModelError, match=rf"x\.json {words}"):
        read_json(tmp_path / "x.json")


def test_a_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"x\.json of m cannot be read"):
        read_json(tmp_path / "x.json", "m")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (path := tmp_path / "x.json").open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(ModelError, match=rf"more than {LARGEST} bytes"):
        read_json(path)
    path.write_text('{"a": 1}')
    assert read_json(path, most=8) == {"a": 1}
    with pytest.raises(ModelError, match="more than 7 bytes"):
        read_json(path, most=7)


def test_a_field_of_another_type_is_an_error_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": 3}')
    words = r"A field of x\.json has a type or value that it cannot have \(TypeError: 'int'"
    with pytest.raises(ModelError, match=words), readable_fields("x.json"):
        read_json(tmp_path / "x.json")["a"]["b"]
