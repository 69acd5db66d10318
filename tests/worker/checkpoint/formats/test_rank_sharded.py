"""Files of a tensor-parallel training run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from baton.errors import ModelError
from baton_worker.checkpoint.formats.open_checkpoint import open_checkpoint
from baton_worker.checkpoint.formats.rank_sharded import RankShardedFolder
from baton_worker.checkpoint.formats.safetensors import SafetensorsFolder
from baton_worker.models import resolve
from tests.oracles.checkpoints import MAKERS, fairseq2_tensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        MAKERS["Fairseq2LlamaForCausalLM"](tmp_path)
    return tmp_path


def test_shares_are_joined(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert isinstance(checkpoint, RankShardedFolder)
    joined = dict(checkpoint.tensors(resolve(checkpoint.config)))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        _, _, whole = fairseq2_tensors()
    assert joined.keys() == whole.keys()
    assert all(torch.equal(tensor, joined[name]) for name, tensor in whole.items())


def test_a_missing_rank_is_an_error(folder: Path) -> None:
    (folder / "model.1.safetensors").rename(folder / "model.2.safetensors")
    with pytest.raises(ModelError, match="cannot be read"):
        list(RankShardedFolder(folder).tensors(resolve(RankShardedFolder(folder).config)))


def test_other_folders_are_read_as_ever(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert isinstance(open_checkpoint(tmp_path), SafetensorsFolder)
