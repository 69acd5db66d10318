"""What Chameleon reads from a config."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import ModelError

VQ = {"num_embeddings": 12, "resolution": 32, "channel_multiplier": [1, 2], "base_channels": 32}
CODES = {f"IMGIMG{chr(65 + code)}Z": 50 - code for code in range(10)}
CODES |= {"IMGIMGBAZ": 60, "IMGIMGBBZ": 70, "<image>": 5}


def test_tokens_are_named_by_their_codes(spec_of: Any) -> None:
    spec = spec_of("ChameleonForConditionalGeneration", vq_config=VQ, vocabulary_map=CODES)
    assert spec.tower.tokens == (*range(50, 40, -1), 60, 70) and spec.tower.image_token == 5
    assert spec.suppressed_tokens == (*range(41, 51), 60, 70)
    assert spec.tower.num_tokens == 16 * 16 and spec.tower.channels == (32, 64)
    assert spec.layers[0][0].qk_norm.over == "each" and spec.style == "pre"


def test_a_code_without_a_token_is_refused(spec_of: Any) -> None:
    few = VQ | {"num_embeddings": 13}
    with pytest.raises(ModelError, match="12 tokens of images for 13 codes"):
        spec_of("ChameleonForConditionalGeneration", vq_config=few, vocabulary_map=CODES)
