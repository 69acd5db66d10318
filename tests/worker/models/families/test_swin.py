"""What a Swin tower reads from a config."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.spec import Swin

SEEN = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}


def test_defaults_and_what_is_refused(spec_of: Any) -> None:
    def spec(**changes: Any) -> Any:
        fields = {"vision_config": {"model_type": "swin"}, "text_config": {}} | SEEN | changes
        return spec_of("LlavaForConditionalGeneration", **fields)

    stack = spec().tower.stack
    assert isinstance(stack, Swin) and stack.out_hidden == 768 == spec().tower.projector[0].inputs
    assert (stack.depths, stack.num_heads, stack.window) == ((2, 2, 6, 2), (3, 6, 12, 24), 7)
    with pytest.raises(ModelError, match="vision_feature_layer other than -1"):
        spec(vision_feature_layer=-2)
    with pytest.raises(ModelError, match="has no class token"):
        spec(vision_feature_select_strategy="default")
