"""What LFM2-VL reads from a config."""

from __future__ import annotations

from typing import Any

from baton_worker.spec import Merge, SplitTiles


def test_the_projection_and_the_rules_of_tiles(spec_of: Any) -> None:
    text = {"model_type": "lfm2", "hidden_size": 48, "num_attention_heads": 4, "vocab_size": 300}
    text |= {
        "max_position_embeddings": 64,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
    }
    fields = {"text_config": text, "vision_config": {"hidden_size": 32}, "max_tiles": 6}
    tower = spec_of("Lfm2VlForConditionalGeneration", **fields).tower
    assert isinstance(tower.arrangement, SplitTiles)
    rules = tower.arrangement.rules
    assert (rules.least, rules.most, rules.tile, rules.patch, rules.merge) == (2, 6, 512, 16, 2)
    merge, norm, first, second = tower.projector
    assert merge == Merge(2) and norm.width == first.inputs == 128
    assert (first.outputs, second.inputs, second.outputs) == (2560, 2560, 48)
    bare = {"projector_use_layernorm": False, "do_image_splitting": False}
    tower = spec_of("Lfm2VlForConditionalGeneration", **fields | bare).tower
    assert len(tower.projector) == 3 and tower.arrangement.rules.most == 1
