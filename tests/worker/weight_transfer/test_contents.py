"""Digests of weights: of files, and of folders."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from baton.errors import ModelError
from baton.protocol import WeightSource
from baton_worker.weight_transfer.contents import check, file_digest, source_of

pytestmark = pytest.mark.row("F14.14")


def test_a_source_is_known_by_all_that_is_read_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for wrong in (folder, tmp_path / "none", Path(__file__)):
        with pytest.raises(ModelError):
            source_of(wrong)
    (folder / "config.json").write_text("{}")
    weights = folder / "model.safetensors"
    save_file({"a": torch.ones(2, 2)}, weights)
    whole, part = source_of(folder), source_of(weights)
    assert whole.whole and not part.whole
    assert part.digest == sha256(weights.read_bytes()).digest() == file_digest(weights)
    check(whole)
    (folder / "README.md").write_text("not read")
    assert source_of(folder) == whole
    for change in ("config.json", "generation_config.json", "more.safetensors"):
        (folder / change).write_text("changed")
        changed = source_of(folder)
        assert changed.digest != whole.digest
        with pytest.raises(ModelError, match="has changed"):
            check(whole)
        whole = changed
    with pytest.raises(ModelError, match="cannot be read"):
        file_digest(tmp_path / "none")


def test_contents_are_the_expected_ones(tmp_path: Path) -> None:
    path = tmp_path / "part.safetensors"
    path.write_bytes(b"weights")
    digits = sha256(b"weights").hexdigest()
    assert source_of(path, {path.name: digits.upper()}) == WeightSource(
        str(path), bytes.fromhex(digits), whole=False
    )
    with pytest.raises(ModelError, match=f"has SHA-256 {digits}"):
        source_of(path, {path.name: "0" * 64})
    with pytest.raises(ModelError, match="no other"):
        source_of(path, {"other": digits})
