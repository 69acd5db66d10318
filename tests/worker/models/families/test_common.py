"""Reading configs: defaults and older spellings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from baton.errors import ModelError
from baton_worker.models.families import DECLARED
from baton_worker.models.families.common import (
    architecture,
    gqa,
    rope,
    rotated,
    rotating_windows,
    sliding,
)
from baton_worker.spec import Attention, DualChunkAttention, FourierRope


def config(**fields: Any) -> SimpleNamespace:
    base = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "max_position_embeddings": 128,
    }
    return SimpleNamespace(**base | fields)


def windows(c: SimpleNamespace) -> list[int | None]:
    return [m.mask.window for m in sliding(c, gqa(c)) if isinstance(m, Attention)]


def test_absent_head_fields_take_the_hugging_face_defaults() -> None:
    attention = gqa(config(num_key_value_heads=None, head_dim=None))
    assert (attention.num_kv_heads, attention.head_dim, attention.scale) == (4, 16, 0.25)


def test_layers_slide_from_max_window_layers_on_or_every_other_one_before(spec_of: Any) -> None:
    fields = {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 3}
    assert windows(config(**fields)) == [None, None, None, 32]
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    shared = {"shared_expert_intermediate_size": 24}
    spec = spec_of("Qwen2MoeForCausalLM", **fields, **sizes, **shared)
    theirs = transformers.Qwen2MoeConfig(num_hidden_layers=4, **fields).layer_types
    expected = [32 if kind == "sliding_attention" else None for kind in theirs]
    assert [mixer.mask.window for mixer, _ in spec.layers] == expected == [32, None, 32, None]


def test_no_layer_slides_unless_asked() -> None:
    assert windows(config(sliding_window=32, max_window_layers=0)) == [None] * 4


def test_listed_layer_types_win() -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    c = config(use_sliding_window=True, sliding_window=8, max_window_layers=0, layer_types=kinds)
    assert windows(c) == [8, None, 8, None]
    c.use_sliding_window = False  # The models of transformers fail.
    with pytest.raises(ModelError, match="layer_types has sliding layers, but use_sliding_window"):
        windows(c)


def test_an_odd_number_of_channels_cannot_turn() -> None:
    with pytest.raises(ModelError, match="turns 5 channels of a head of 16"):
        rope(config(), 16, partial=0.334)


def test_every_so_many_layers_do_not_rotate() -> None:
    assert rotated(config()) == [True, True, True, False]
    assert rotated(config(no_rope_layer_interval=2)) == [True, False, True, False]
    assert rotated(config(no_rope_layers=[0, 1, 1, 0, 1])) == [False, True, True, False]


def test_only_windows_rotate() -> None:
    mixers = rotating_windows(config(), gqa(config()), 8, 2)
    found = [(m.mask.window, m.rope is None) for m in mixers if isinstance(m, Attention)]
    assert found == [(8, False), (None, True)] * 2


def test_partial_rotary_factor_and_lists_are_read() -> None:
    settings = SimpleNamespace(rope_type="factors", factors=[1.0, 2.0], partial_rotary_factor=0.25)
    found = rope(config(rope_parameters=settings, rope_theta=500.0), 16, partial=1.0)
    assert (found.dim, found.base, found.parameters) == (4, 500.0, (("factors", (1.0, 2.0)),))


def test_architectures_that_turn_whole_heads_ignore_a_share_or_refuse_it_beside_scaling() -> None:
    """transformers ignores it in the first case and fails in the second."""
    given = SimpleNamespace(rope_type="default", partial_rotary_factor=0.5)
    assert rope(config(rope_parameters=given), 16).dim == 16
    assert rope(config(partial_rotary_factor=0.5), 16).dim == 16
    scaled = SimpleNamespace(rope_type="linear", factor=2.0, partial_rotary_factor=0.5)
    with pytest.raises(ModelError, match=r"0\.5 beside the rope type 'linear'"):
        rope(config(rope_parameters=scaled), 16)


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


def test_a_rope_of_mixed_frequencies_keeps_what_turns_in_the_context() -> None:
    given = SimpleNamespace(rope_type="default", rope_theta=10_000.0, fope_init_factor=0.5)
    mixed = gqa(config(num_key_value_heads=2, rope_parameters=given)).rope
    assert isinstance(mixed, FourierRope)
    # 10000^(-n / 8) > 2 pi / 128 for n up to 2.
    assert (mixed.kept, mixed.each_head, mixed.parameters) == (3, False, ())
    given.num_inv_freq, given.fope_sep_head = 5, True
    mixed = gqa(config(num_key_value_heads=2, rope_parameters=given)).rope
    assert isinstance(mixed, FourierRope)
    assert (mixed.num_heads, mixed.num_kv_heads, mixed.kept) == (4, 2, 5) and mixed.each_head


@pytest.mark.parametrize("sparse", [True, False])
def test_dual_chunks_run_dense_and_say_so(sparse: bool, caplog: pytest.LogCaptureFixture) -> None:
    given = SimpleNamespace(chunk_size=262_144, local_size=8192)
    given.original_max_position_embeddings = 262_144
    if sparse:
        given.sparse_attention_config = [{}]
    attention = gqa(config(dual_chunk_attention_config=given), bias=True)
    assert isinstance(attention, DualChunkAttention) and attention.projections.bias
    assert (attention.chunk_len, attention.trained) == (253_952, 262_144)
    assert ("run dense" in caplog.text) == sparse
