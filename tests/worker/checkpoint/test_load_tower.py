"""The tower of a checkpoint alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.load_tower import load_tower
from baton_worker.config import Config
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model
from tests.support import tiny_llava, tiny_models

CPU = Config(device="cpu", dtype="float32")


@pytest.mark.row("F20.02")
def test_a_tower_alone_gives_the_embeddings_of_the_whole_model(tmp_path: Path) -> None:
    tiny_llava.save(tmp_path)
    context = BuildContext.from_config(CPU)
    whole, alone = load_model(tmp_path, context), load_tower(tmp_path, context)
    assert isinstance(whole.model, Model) and whole.model.vision is not None
    images = [torch.randn(3, 28, 28) for _ in range(2)]
    grids = [(1, 1, 1)] * 2
    expected = whole.model.vision.encode_media(images, grids)
    for one, other in zip(alone.tower.encode_media(images, grids), expected, strict=True):
        assert torch.equal(one, other)
    assert 0 < alone.weight_bytes < whole.weight_bytes
    assert alone.tower.width == 48 and alone.tower.dtype is torch.float32


def test_a_model_that_sees_nothing_has_no_tower(tmp_path: Path) -> None:
    tiny_models.save_checkpoint(tmp_path, "LlamaForCausalLM")
    with pytest.raises(ModelError, match="without --encode"):
        load_tower(tmp_path, BuildContext.from_config(CPU))
