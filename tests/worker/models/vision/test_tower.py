"""Pixels to embeddings, as transformers makes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from tests.support import tiny_llava


@pytest.mark.parametrize("strategy", ["default", "full"])
def test_embeddings_are_those_of_transformers(tmp_path: Path, strategy: str) -> None:
    reference = tiny_llava.save(tmp_path)
    config = tmp_path / "config.json"
    said = '"vision_feature_select_strategy": "default"'
    assert said in config.read_text()
    config.write_text(config.read_text().replace(said, said.replace("default", strategy)))
    loaded = load_model(tmp_path, BuildContext(torch.device("cpu"), torch.float32))
    tower = loaded.model.vision
    assert tower is not None and not isinstance(tower, torch.Tensor)
    pixels, grid = torch.randn(2, 3, 30, 30), (1, 1, 1)
    with torch.inference_mode():
        wanted = reference.get_image_features(
            pixels, vision_feature_select_strategy=strategy
        ).pooler_output
    found = tower.encode_images(list(pixels), [grid] * 2)
    assert tower.num_tokens(grid) == len(found[0]) == 16 + (strategy == "full")
    assert tower.progress == 2, "the last layer of three is not run"
    for ours, expected in zip(found, wanted, strict=True):
        assert torch.allclose(ours, expected, atol=1e-4)
    assert "expected" in tower.refusal((3, 31, 30), grid) and not tower.refusal((3, 30, 30), grid)
