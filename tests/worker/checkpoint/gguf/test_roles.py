"""Where the tensors of a GGUF file belong."""

from __future__ import annotations

import gguf
import pytest

from baton_worker.checkpoint.gguf.recurrent_pieces import Place
from baton_worker.checkpoint.gguf.roles import BARE, ROLES, ROUTER_SCALES, Roles, place, wanted
from baton_worker.spec import (
    Attention,
    Decoder,
    Glu,
    Head,
    Mamba,
    Norm,
)
from baton_worker.spec.names import DEFAULT

ATTENTION = Attention(num_heads=4, num_kv_heads=2, head_dim=8, scale=1.0, rope=None)


def decoder(style: str = "pre") -> Decoder:
    layers = ((ATTENTION, Glu(16)),) * 2
    return Decoder(32, 64, layers, Norm(1e-6), Head(), style=style)


def test_every_row_is_known_to_both_sides() -> None:
    parts = {name.rpartition("{bid}.")[2] for name in gguf.TENSOR_NAMES.values()}
    assert ROLES.keys() <= parts
    prefixes = ("altup_", "laurel_", "layer_", "experts_", "dense_")
    own = {role for role in ROLES.values() if role.startswith(prefixes)}
    assert set(ROLES.values()) - DEFAULT.keys() - own == {"token_types"}
    assert ROUTER_SCALES.keys() <= parts
    assert {*ROLES.values(), *ROUTER_SCALES.values()} >= BARE


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("blk.3.attn_q.weight", Place(3, "attn_q", "weight")),
        ("output_norm.bias", Place(None, "output_norm", "bias")),
        ("blk.3.ssm_a", Place(3, "ssm_a", "")),
        ("v.blk.0.ln1.weight", Place(None, "v.blk.0.ln1", "weight")),
    ],
)
def test_a_name_is_taken_apart(stored: str, expected: Place) -> None:
    assert place(stored) == expected


def test_fused_tensors_are_taken_apart() -> None:
    roles = Roles(decoder(), {})
    pieces = roles.pieces("blk.1.attn_qkv.weight", (64, 32))
    assert [piece.rows for piece in pieces] == [32, 16, 16]
    assert [piece.heads for piece in pieces] == [4, 2, None]
    assert pieces[2].name == "model.layers.1.self_attn.v_proj.weight"
    both = roles.pieces("blk.0.ffn_up.weight", (32, 32))
    assert [piece.name.split(".")[-2] for piece in both] == ["gate_proj", "up_proj"]
    assert len(roles.pieces("blk.0.ffn_up.weight", (16, 32))) == 1


def test_the_first_projection_of_a_state_space_is_taken_apart() -> None:
    layers = ((Mamba(12, 4, 2, 3), None),)
    roles = Roles(Decoder(6, 64, layers, Norm(1e-6), Head()), {})
    pieces = roles.pieces("blk.0.ssm_in.weight", (24, 6))
    assert [(piece.name.split(".")[-2], piece.rows) for piece in pieces] == [
        ("input_proj", 12),
        ("gate_proj", 12),
    ]
    assert roles.name("blk.0.ssm_a") == "model.layers.0.mamba.A_log"


def test_the_names_of_the_package_decide_where_norms_are() -> None:
    known = {"blk.0.post_attention_norm": "model.layers.0.post_attention_layernorm"}
    assert Roles(decoder(), known).name("blk.0.post_attention_norm.weight") == (
        "model.layers.0.post_attention_layernorm.weight"
    )
    assert Roles(decoder(), {}).name("blk.0.exp_probs_b.bias") == (
        "model.layers.0.mlp.gate.e_score_correction_bias"
    )
    assert Roles(decoder(), {}).name("v.patch_embd.weight") == "v.patch_embd.weight"


def test_a_style_has_its_norms_only() -> None:
    behind = DEFAULT["ffn_post_norm"].format(layer=0)
    assert behind not in wanted(decoder(), 0)
    assert behind in wanted(decoder("sandwich"), 0)
