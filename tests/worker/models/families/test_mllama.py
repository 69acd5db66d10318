"""What Llama 3.2 Vision reads from a config."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import ModelError


def test_layers_that_attend_to_images_are_skipped(
    spec_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    spec = spec_of("MllamaForConditionalGeneration", text_config={}, vision_config={})
    empty = [layer for layer, parts in enumerate(spec.layers) if parts == (None, None)]
    assert empty == [3, 8, 13, 18, 23, 28, 33, 38] and len(spec.layers) == 40
    assert spec.layers[0][0].rope.base == 500_000.0 and spec.tower is None
    assert "model.layers.38." in spec.tensors.unused and "images are refused" in caplog.text
    tied = {"tie_word_embeddings": True}
    with pytest.raises(ModelError, match="tie_word_embeddings"):
        spec_of("MllamaForConditionalGeneration", text_config=tied)
