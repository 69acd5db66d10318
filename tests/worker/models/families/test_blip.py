"""What BLIP-2 reads from a config."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.spec import QFormer


def test_published_configs_leave_most_out(spec_of: Any) -> None:
    text = {"model_type": "opt", "hidden_size": 2560, "num_attention_heads": 32}
    spec = spec_of("Blip2ForConditionalGeneration", text_config=text, vision_config={})
    qformer, projection = spec.tower.projector
    assert isinstance(qformer, QFormer)
    assert (qformer.queries, qformer.inputs, qformer.width, qformer.num_layers) == (
        *(32, 1408, 768),
        12,
    )
    assert (projection.inputs, projection.outputs) == (768, 2560)
    assert len(spec.tower.stack.layers) == 39 and not spec.tower.keeps_class_token
    assert spec.tower.image_token == 50_265 and spec.head.tied


def test_a_text_model_of_two_halves_is_refused(spec_of: Any) -> None:
    with pytest.raises(ModelError, match=r"T5, an encoder with a decoder.*with OPT"):
        spec_of("Blip2ForConditionalGeneration", text_config={"model_type": "t5"})
