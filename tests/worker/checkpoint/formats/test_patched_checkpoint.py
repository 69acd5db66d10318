"""Tensors of files in the place of those of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton.errors import ModelError
from baton_worker.checkpoint.formats.patched_checkpoint import PatchedCheckpoint, tensor_names
from baton_worker.checkpoint.formats.safetensors import SafetensorsFolder
from baton_worker.models.resolve import resolve

pytestmark = pytest.mark.row("F14.14")
NAME = "model.layers.1.mlp.up_proj.weight"


def test_the_last_file_counts_and_every_tensor_comes_once(stories: Path, tmp_path: Path) -> None:
    base = SafetensorsFolder(stories)
    spec, stored = resolve(base.config), load_file(next(stories.glob("*.safetensors")))
    paths = [tmp_path / f"{number}.safetensors" for number in (1, 2)]
    for number, path in enumerate(paths):
        save_file({NAME: torch.full_like(stored[NAME], number)}, path)
    assert tensor_names(paths[0]) == [NAME]
    found = list(PatchedCheckpoint(base, paths).tensors(spec))
    assert sorted(name for name, _ in found) == sorted(stored)
    for name, tensor in found:
        assert isinstance(tensor, Tensor)
        assert torch.equal(tensor, stored[name] * 0 + 1 if name == NAME else stored[name])


def test_what_has_no_place_is_refused(stories: Path, tmp_path: Path) -> None:
    base, path = SafetensorsFolder(stories), tmp_path / "p.safetensors"
    save_file({"model.none.weight": torch.ones(1)}, path)
    with pytest.raises(ModelError, match=r"has not: model\.none\.weight"):
        list(PatchedCheckpoint(base, [path]).tensors(resolve(base.config)))
    path.write_bytes(b"no tensors")
    with pytest.raises(ModelError, match="cannot be read"):
        PatchedCheckpoint(base, [path])
    base.config.quantization_config = SimpleNamespace(quant_method="fp8")
    with pytest.raises(ModelError, match="stored as fp8"):
        PatchedCheckpoint(base, [])
