"""Step-3.7 as its makers write its config, and as transformers saves it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from baton_worker.models.families.step_vision import step_3_7
from baton_worker.spec import Attention
from tests.support.tiny_towers import TOWERS, tiny_config


def spaced(fields: dict[str, Any]) -> Any:
    return json.loads(json.dumps(fields), object_hook=lambda found: SimpleNamespace(**found))


def test_step_3_7_in_both_spellings() -> None:
    published = TOWERS["step-3.7"][1]
    scaled = published["text_config"] | {"yarn_only_types": ["full_attention"]}
    scaled |= {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    for text in (published["text_config"], scaled):
        saved = json.loads(tiny_config("step-3.7", text_config=text).to_json_string(use_diff=False))
        ours, theirs = step_3_7(spaced(published | {"text_config": text})), step_3_7(spaced(saved))
        assert ours == theirs
    heads = [mixer.num_heads for mixer, _ in ours.layers if isinstance(mixer, Attention)]
    assert heads == [4, 6] and ours.tower is not None


def test_a_scale_of_scores_of_its_own_is_refused() -> None:
    published = TOWERS["step-3.7"][1]
    text = published["text_config"] | {"query_pre_attn_scalar": 20}
    with pytest.raises(AttributeError, match="query_pre_attn_scalar"):
        step_3_7(spaced(published | {"text_config": text}))
