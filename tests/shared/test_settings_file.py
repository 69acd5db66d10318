"""The file of one service: its own section, what is left to others, what is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.errors import SettingsError
from baton.settings import config_classes
from baton.settings_file import path_in, read, text


def test_flag_beats_environment_beats_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "baton.yaml"
    file.write_text("port: 1\nworker: {max_num_seqs: 8, block_size: 32, dtype: half}\n")
    monkeypatch.setenv("BATON_WORKER_BLOCK_SIZE", "64")
    config = config_classes()["worker"].load(["--config", str(file), "--max-num-seqs", "9"])
    found = config.model_dump(include={"max_num_seqs", "block_size", "dtype"})
    assert found == {"max_num_seqs": 9, "block_size": 64, "dtype": "float16"}


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "baton.yaml"
    file.write_text("max_num_seq: 8\n")
    with pytest.raises(SettingsError, match="Did you mean max_num_seqs"):
        config_classes()["worker"].load([f"--config={file}"])


def test_what_is_no_yaml_is_refused(tmp_path: Path) -> None:
    """Broken syntax, a tag of another language, bytes and escapes that are no text, a value
    that holds itself, a date that is none, a number too long for Python, too deep a nesting."""
    file = tmp_path / "baton.yaml"
    unread = f"--config {file} cannot be read: "
    for content, said in (
        (b"a: [", f"--config {file}, line 1: "),
        (b"a: 1\nb: 2\n c: 3\n", f"--config {file}, line 3: "),
        (b"a: 1\nb: !!python/name:os.system", f"--config {file}, line 2: "),
        (b"a: \0", unread),
        (b"a: \xff", unread),
        (b'a: "\\ud800"', unread),
        (b"a: &a [*a]", unread),
        (b"a: 2020-99-99", unread),
        (b"a: " + b"9" * 5000, unread),
        (b"a: " + b"[" * 5000, unread),
    ):
        file.write_bytes(content)
        with pytest.raises(SettingsError) as error:
            read(str(file))
        assert error.value.message.startswith(said) and error.value.message.endswith(".")
        assert "\n" not in error.value.message


def test_values_are_written_as_behind_a_flag() -> None:
    assert text(["a", "b"]) == "a,b" and text({"a": 1}) == '{"a": 1}' and text(None) == ""
    assert path_in(["--config", "a"], {"BATON_CONFIG": "b"}) == "a"
    assert path_in([], {"BATON_CONFIG": "b"}) == "b"
