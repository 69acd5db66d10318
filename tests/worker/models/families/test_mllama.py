"""What Llama 3.2 Vision reads from a config."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.spec import CrossAttention


def test_layers_that_attend_to_images(spec_of: Any) -> None:
    """The defaults are those of the 11B model; the table of embeddings has more rows than the
    vocabulary."""
    spec = spec_of("MllamaForConditionalGeneration", text_config={}, vision_config={})
    layers = [n for n, (mixer, _) in enumerate(spec.layers) if isinstance(mixer, CrossAttention)]
    assert layers == [3, 8, 13, 18, 23, 28, 33, 38] and len(spec.layers) == 40
    assert spec.layers[0][0].rope.base == 500_000.0 and spec.layers[3][0].states == 4096
    assert (spec.vocab, spec.head.unsaid) == (128_264, 8)
    assert spec.tower.taps == (3, 7, 15, 23, 30) and spec.tower.projector.inputs == 7680
    assert spec.tower.tile_states == 1025 and spec.tower.shapes[5] == (2, 2)
    tied = {"tie_word_embeddings": True}
    with pytest.raises(ModelError, match="tie_word_embeddings"):
        spec_of("MllamaForConditionalGeneration", text_config=tied)
