"""Configs of models that see, as the first checkpoints spell them on the hub."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from baton_worker.models.families.vision_language import text_of
from baton_worker.spec import (
    Attention,
    Rope,
    Sections,
)
from baton_worker.spec.hf_config import read_eos_token_ids


def rope_of(spec: Any) -> Rope:
    mixer = spec.layers[0][0]
    assert isinstance(mixer, Attention) and mixer.rope is not None
    return mixer.rope


def test_qwen2_vl_is_flat(spec_of: Any) -> None:
    spec = spec_of(
        "Qwen2VLForConditionalGeneration",
        hidden_size=1024,
        rope_theta=1_000_000.0,
        rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
        vision_config={"depth": 32},
        tie_word_embeddings=True,
    )
    rope = rope_of(spec)
    assert rope.sections == Sections((16, 24, 24)) and rope.kind == "default"
    assert (rope.base, rope.parameters, spec.head.tied) == (1_000_000.0, (), True)
    assert spec.tower is not None and len(spec.tower.stack.layers) == 32
    assert not spec.tensors.unused


def test_qwen3_vl_has_its_texts_apart(spec_of: Any) -> None:
    text: dict[str, Any] = {
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20]}
    }
    text |= {"rope_theta": 5_000_000, "head_dim": 128, "tie_word_embeddings": True}
    spec = spec_of("Qwen3VLForConditionalGeneration", text_config=text, tie_word_embeddings=False)
    rope = rope_of(spec)
    assert rope.sections == Sections((24, 20, 20), "cycled") and rope.base == 5_000_000.0
    assert not spec.head.tied and rope.parameters == ()


@pytest.mark.parametrize(
    ("name", "layout"), [("xdrope_section", "runs"), ("mrope_section", "doubled")]
)
def test_hunyuan_says_whose_layout_it_has(spec_of: Any, name: str, layout: str) -> None:
    scaling = {"alpha": 1000.0, "factor": 1.0, "type": "xdrope", name: [16, 16, 16, 16]}
    spec = spec_of(
        "HunYuanVLForConditionalGeneration", attention_head_dim=128, rope_scaling=scaling
    )
    rope = rope_of(spec)
    assert (rope.dim, rope.kind) == (128, "dynamic_alpha")
    assert spec.tower is not None and spec.tower.rope_index == "xdrope"
    assert rope.sections == Sections((16, 16, 16, 16), layout)


def test_the_whole_says_whether_the_head_is_tied() -> None:
    inner = SimpleNamespace(tie_word_embeddings=True, hidden_size=4)
    assert text_of(SimpleNamespace(text_config=inner)).tie_word_embeddings
    outer = SimpleNamespace(text_config=inner, tie_word_embeddings=False, hidden_size=9)
    assert (text_of(outer).tie_word_embeddings, text_of(outer).hidden_size) == (False, 4)


def test_the_end_may_be_known_to_the_texts_alone(tmp_path: Any) -> None:
    inner = SimpleNamespace(eos_token_id=7)
    assert read_eos_token_ids(tmp_path, SimpleNamespace(text_config=inner)) == (7,)
    both = SimpleNamespace(text_config=inner, eos_token_id=[1, 2])
    assert read_eos_token_ids(tmp_path, both) == (1, 2)
