"""Images that become tokens, against Chameleon of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.load_tower import load_tower
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model
from baton_worker.models.vision.media_tower import is_finite
from tests.support.tiny_towers import tiny_tower

CPU = BuildContext(torch.device("cpu"), torch.float32)


@pytest.mark.row("V60", "F01.26", "F23.09")
def test_images_are_tokens_and_are_not_sampled(tmp_path: Path, driver: Any) -> None:
    """In both orders of norms; encode workers find the same tokens."""
    for swin in (True, False):
        reference = tiny_tower("chameleon", folder := tmp_path / f"{swin}", swin_norm=swin)
        pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            tokens = reference.get_image_tokens(pixels)
        loaded = load_model(folder, CPU)
        assert isinstance(loaded.model, Model) and loaded.model.vision is not None
        for tower in (loaded.model.vision, load_tower(folder, CPU).tower):
            found = tower.encode_media(list(pixels), [(1, 1, 1)] * 2)
            assert torch.equal(torch.stack(found)[..., 0], tokens) and tokens.unique().numel() > 4
            assert found[0].dtype == tower.dtype and found[0].shape[1] == tower.width == 1
            assert tower.num_tokens((3, 32, 32), (1, 1, 1)) == len(found[0]) == 64
            assert "expected" in tower.refusal((3, 31, 32), (1, 1, 1))
            [broken] = tower.encode_media([pixels[0] * torch.nan], [(1, 1, 1)])
            assert not is_finite(broken) and is_finite(found[0]) and tower.progress > 0
        text = [*range(2, 10), *tokens[0].tolist(), *range(10, 30)]
        with torch.no_grad():
            logits = reference(input_ids=torch.tensor([text])).logits[0]
        ours = driver(loaded, 1).step({0: text})[0]
        torch.testing.assert_close(ours, logits, rtol=1e-3, atol=1e-3)
        assert bool((ours[:, 270:280] == torch.finfo(torch.float32).min).all())
