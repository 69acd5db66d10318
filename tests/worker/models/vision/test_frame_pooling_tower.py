"""Chunks of frames; `test_tower` compares their embeddings with those of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model
from baton_worker.models.vision.frame_pooling_tower import FramePoolingTower, sines
from tests.support.tiny_towers import tiny_tower

WIDTH = 3 * 6 * 6


@pytest.mark.row("F01.10")
def test_a_clip_is_its_chunks_whatever_runs_beside_it(tmp_path: Path) -> None:
    """Four frames become one; those behind them see them not, and no other clip does."""
    tiny_tower("kimi-k2.5", tmp_path)
    model = load_model(tmp_path, BuildContext(torch.device("cpu"), torch.float32)).model
    assert isinstance(model, Model)
    tower = model.vision
    assert isinstance(tower, FramePoolingTower)
    clip, image = torch.randn(6 * 16, WIDTH), torch.randn(8, WIDTH)
    assert tower.num_tokens(clip.shape, (6, 4, 4)) == 8
    whole, still = tower.encode_media([clip, image], [(6, 4, 4), (1, 2, 4)])
    parts = tower.encode_media([clip[:64], clip[64:]], [(4, 4, 4), (2, 4, 4)])
    torch.testing.assert_close(whole, torch.cat(parts))
    torch.testing.assert_close(still, tower.encode_media([image], [(1, 2, 4)])[0])
    backwards = tower.encode_media([clip[:64].view(4, -1).flip(0).view(64, -1)], [(4, 4, 4)])
    assert not torch.allclose(backwards[0], parts[0]), "frames have an order"
    assert "patches were expected" in tower.refusal((3, 36, 36), (1, 1, 1))
    assert "no grid" in tower.refusal((60, WIDTH), (4, 4, 4))
    assert not tower.refusal((64, WIDTH), (4, 4, 4))


def test_the_first_frame_has_sines_of_zero() -> None:
    found = sines(2, 4)
    expected = [torch.tensor(angle) for angle in (1.0, 0.01)]
    assert found[0].tolist() == [0, 0, 1, 1]
    wanted = torch.stack([*(a.sin() for a in expected), *(a.cos() for a in expected)])
    torch.testing.assert_close(found[1], wanted)
