"""Configs of LFM2, LFM3 and MiniMax-01, and unsupported variants."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.spec import Attention, LinearAttention, ShortConv

LFM2 = {"block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, "intermediate_size": 10_752}
MINIMAX = {
    "num_hidden_layers": 3,
    "attn_type_list": [0, 0, 1],
    "postnorm": True,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "hidden_act": "silu",
}


def kinds(spec: Any) -> list[type]:
    return [type(mixer) for mixer, _ in spec.layers]


def test_the_first_configs_of_lfm2_number_the_layers_of_attention(spec_of: Any) -> None:
    spec = spec_of("Lfm2ForCausalLM", num_hidden_layers=4, full_attn_idxs=[1, 3], conv_L_cache=3)
    assert kinds(spec) == [ShortConv, Attention] * 2
    assert spec.layers[0][0] == ShortConv(spec.hidden, 3)


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        (LFM2, 7168),
        (LFM2 | {"block_auto_adjust_ff_dim": False}, 10_752),
        (LFM2 | {"block_ff_dim": 6656}, 4608),
        (LFM2 | {"block_ffn_dim_multiplier": 1.3}, 9472),
    ],
)
def test_the_width_of_the_feed_forward_follows_lfm2s_rule(
    spec_of: Any, fields: dict[str, Any], size: int
) -> None:
    assert spec_of("Lfm2ForCausalLM", **fields).layers[0][1].intermediate == size


def test_heads_are_tied_unless_told_otherwise_under_either_name(spec_of: Any) -> None:
    assert spec_of("Lfm2ForCausalLM").head.tied
    assert not spec_of("Lfm2ForCausalLM", tie_word_embeddings=False).head.tied
    assert not spec_of("Lfm2ForCausalLM", tie_embedding=False, tie_word_embeddings=True).head.tied


def test_lfm3_has_the_layers_and_ropes_of_its_class_where_its_config_is_silent(
    spec_of: Any,
) -> None:
    spec = spec_of("Lfm3ForCausalLM", num_hidden_layers=6)
    conv, near, far = (spec.layers[layer][0] for layer in (0, 4, 2))
    assert kinds(spec) == [ShortConv, ShortConv, Attention, ShortConv, Attention, ShortConv]
    assert conv == ShortConv(spec.hidden, 7) and spec.head.tied and spec.style == "sandwich"
    assert (near.mask.window, near.rope.base, near.rope.kind) == (256, 1e4, "default")
    assert (far.mask.window, far.rope.base, far.rope.kind) == (None, 1e6, "proportional")
    assert (near.head_dim, near.gate.per, dict(far.rope.parameters)["share"]) == (128, "head", 0.5)


def test_deeper_layers_of_minimax_forget_more_slowly(spec_of: Any) -> None:
    spec = spec_of("MiniMaxText01ForCausalLM", **MINIMAX)
    assert kinds(spec) == [LinearAttention, LinearAttention, Attention]
    first, second = (mixer.decays for mixer, _ in spec.layers[:2])
    assert first == pytest.approx(
        [2.0 ** -(8 * n / len(first)) for n in range(1, len(first) + 1)], 1e-4
    )
    assert second == pytest.approx([rate / 2 for rate in first], 1e-4)


def test_minimax_turns_a_part_of_each_head_where_its_config_says_so(spec_of: Any) -> None:
    spec = spec_of("MiniMaxText01ForCausalLM", **MINIMAX, head_dim=16, rotary_dim=8)
    assert spec.layers[2][0].rope.dim == 8


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [("shared_intermediate_size", 64, "shared expert"), ("postnorm", False, "without postnorm")],
)
def test_forms_of_minimax_that_nobody_has_released_are_refused(
    spec_of: Any, field: str, value: object, why: str
) -> None:
    with pytest.raises(ModelError, match=why):
        spec_of("MiniMaxText01ForCausalLM", **MINIMAX | {field: value})


def test_blends_are_read_in_both_spellings(spec_of: Any) -> None:
    theirs = {
        f"layernorm_{part}_{end}": n
        for n, (part, end) in enumerate(
            (part, end)
            for part in ("full_attention", "linear_attention", "mlp")
            for end in ("alpha", "beta")
        )
    }
    blend = spec_of("MiniMaxText01ForCausalLM", **MINIMAX, **theirs).blend
    assert (blend.attention, blend.linear, blend.ffn) == ((0, 1), (2, 3), (4, 5))
