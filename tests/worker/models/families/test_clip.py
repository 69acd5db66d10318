"""Configs of CLIP and SigLIP to specs; models/test_dual_encoder.py tests the computation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from baton_worker.models.families.clip import clip, siglip
from baton_worker.spec import Attention, CausalAttention, Padding


def config(text: dict[str, Any] | None = None, vision: dict[str, Any] | None = None) -> Any:
    return SimpleNamespace(
        text_config=SimpleNamespace(**text or {}), vision_config=SimpleNamespace(**vision or {})
    )


def test_published_clip_is_what_nothing_says() -> None:
    """ViT-B/32: transformers' defaults."""
    found = clip(config())
    assert (found.vocab, found.hidden, len(found.layers)) == (49_408, 512, 12)
    assert (found.text_length, found.end, found.padding) == (77, 49_407, None)
    assert found.vision.patches.count == 50 and found.max_length == 77
    assert found.projection.outputs == 512 and found.vision.embedding_norm is not None
    assert type(found.layers[0][0]) is CausalAttention
    assert type(found.vision.layers[0][0]) is Attention


def test_published_siglip_is_what_nothing_says() -> None:
    """base-patch16-224: an image is longer than any text."""
    found = siglip(config())
    assert (found.vocab, found.text_length, found.max_length) == (32_000, 64, 196)
    assert (found.padding, found.end) == (Padding(64, 1), None)
    assert found.projection.outputs == found.vision.hidden == 768
    assert found.vision.pool is not None and found.vision.projection is None


@pytest.mark.parametrize(("said", "end"), [(2, -1), (49_407, 49_407)])
def test_the_end_of_old_checkpoints(said: int, end: int) -> None:
    assert clip(config({"eos_token_id": said})).end == end


@pytest.mark.parametrize(
    "vision", [{"image_size": [224, 112]}, {"patch_size": [16, 8]}, {"num_channels": 1}]
)
def test_images_that_are_no_squares_are_refused(vision: dict[str, Any]) -> None:
    for family in (clip, siglip):
        with pytest.raises(AttributeError, match=r"must be one number|not supported, only 3"):
            family(config(vision=vision))
