"""ERNIE 4.5-VL's experts by modality, from its config."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.spec import Attention, ModalityMoe, Rope, Sections

CONFIG: dict[str, Any] = {
    "head_dim": 128,
    "moe_num_experts": [64, 32],
    "moe_intermediate_size": [40, 16],
    "moe_layer_start_index": [1, 1],
    "moe_layer_end_index": [4, 3],
    "moe_num_shared_experts": 2,
    "moe_k": 6,
    "im_patch_id": 7,
    "rope_scaling": {"type": "default", "mrope_section": [22, 22, 20]},
    "vision_config": {"hidden_size": 32, "num_heads": 2, "depth": 1},
}
NAME = "Ernie4_5_VLMoeForConditionalGeneration"


def test_each_modality_has_experts_of_its_own(spec_of: Any) -> None:
    spec = spec_of(NAME, **CONFIG)
    assert [isinstance(ffn, ModalityMoe) for _, ffn in spec.layers] == [False, True, True, True]
    moe = spec.layers[1][1]
    assert (moe.text.router.num_experts, moe.text.router.top_k) == (64, 6)
    assert (moe.vision.router.num_experts, moe.vision.first_number) == (32, 64)
    assert (moe.text.expert.intermediate, moe.vision.expert.intermediate) == (40, 16)
    assert moe.text.shared is not None and moe.vision.shared is None
    assert spec.vision_tokens[0] == spec.tower.image_token == 7
    mixer = spec.layers[0][0]
    assert isinstance(mixer, Attention) and isinstance(mixer.rope, Rope)
    assert mixer.rope.sections == Sections((22, 22, 20), "grid")
    assert mixer.rope.interleaved and mixer.rope.base == 500_000.0


def test_layers_that_differ_by_modality_are_refused(spec_of: Any) -> None:
    with pytest.raises(ModelError, match="differs by modality"):
        spec_of(NAME, **CONFIG | {"moe_layer_start_index": [1, 2]})
