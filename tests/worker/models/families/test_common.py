"""Reading configs: defaults and older spellings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from baton_worker.models.families import DECLARED
from baton_worker.models.families.common import architecture, gqa, rope, sliding
from baton_worker.models.spec import Attention


def config(**fields: Any) -> SimpleNamespace:
    base = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "max_position_embeddings": 128,
    }
    return SimpleNamespace(**base | fields)


def windows(c: SimpleNamespace) -> list[int | None]:
    return [m.window for m in sliding(c, gqa(c)) if isinstance(m, Attention)]


def test_absent_head_fields_take_the_hugging_face_defaults() -> None:
    attention = gqa(config(num_key_value_heads=None, head_dim=None))
    assert (attention.num_kv_heads, attention.head_dim, attention.scale) == (4, 16, 0.25)


def test_layers_from_max_window_layers_on_slide() -> None:
    c = config(use_sliding_window=True, sliding_window=32, max_window_layers=3)
    assert windows(c) == [None, None, None, 32]


def test_no_layer_slides_unless_asked() -> None:
    assert windows(config(sliding_window=32, max_window_layers=0)) == [None] * 4


def test_listed_layer_types_win() -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    c = config(use_sliding_window=True, sliding_window=8, max_window_layers=0, layer_types=kinds)
    assert windows(c) == [8, None, 8, None]


def test_partial_rotary_factor_and_lists_are_read() -> None:
    settings = SimpleNamespace(rope_type="factors", factors=[1.0, 2.0], partial_rotary_factor=0.25)
    found = rope(config(rope_parameters=settings, rope_theta=500.0), 16)
    assert (found.dim, found.base, found.parameters) == (4, 500.0, (("factors", (1.0, 2.0)),))


def test_original_context_defaults_to_the_declared_one() -> None:
    settings = SimpleNamespace(rope_type="yarn", factor=2.0)
    assert dict(rope(config(rope_parameters=settings), 16).parameters) == {
        "factor": 2.0,
        "original_max_position_embeddings": 128,
    }


def test_declaring_an_architecture_fills_the_table() -> None:
    architecture("NobodysForCausalLM")(nobodys)
    try:
        assert DECLARED["NobodysForCausalLM"].endswith(":nobodys")
    finally:
        del DECLARED["NobodysForCausalLM"]


def nobodys(c: Any) -> Any:
    return c
