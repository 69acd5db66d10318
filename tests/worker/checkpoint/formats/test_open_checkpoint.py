"""Which reader reads a path, and which paths none does."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.errors import ModelError
from baton_worker.checkpoint.formats.open_checkpoint import open_checkpoint


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as error:
        open_checkpoint(path)
    return error.value.message


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"weights")
    assert "model.bin is not a checkpoint" in refusal(path)


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "nothing")
