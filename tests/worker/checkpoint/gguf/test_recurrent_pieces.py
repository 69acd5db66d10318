"""Weights in the tensors of recurrent layers."""

from __future__ import annotations

from baton_worker.checkpoint.gguf.recurrent_pieces import Piece, Place, recurrent_pieces
from baton_worker.spec import Attention, DeltaNet, GatedNorm, ShortConv, StateSpace

NORM = GatedNorm(1e-6)
DELTA = DeltaNet(num_key_heads=2, num_heads=6, key_dim=8, value_dim=12, taps=4, norm=NORM)
SCAN = StateSpace(num_heads=6, head_dim=16, num_groups=2, state_size=10, taps=4, norm=NORM)


def of(role: str, at: Place) -> str:
    return f"{role}.{at.suffix}"


def test_value_heads_are_the_rows_in_tiles() -> None:
    assert recurrent_pieces(DELTA, Place(0, "attn_qkv", "weight"), of) == [
        Piece("delta_query.weight", 16),
        Piece("delta_key.weight", 16),
        Piece("delta_value.weight", 72, tiles=(3, 2)),
    ]
    assert recurrent_pieces(DELTA, Place(0, "ssm_dt", "bias"), of) == [
        Piece("delta.dt_bias", tiles=(3, 2))
    ]
    assert recurrent_pieces(DELTA, Place(0, "ssm_out", "weight"), of) == [
        Piece("delta_output.weight")
    ]


def test_projections_are_several_weights() -> None:
    assert recurrent_pieces(SCAN, Place(0, "ssm_a", ""), of) == [Piece("ssm.A_log")]
    parts = recurrent_pieces(ShortConv(8, 3), Place(0, "shortconv.in_proj", "weight"), of)
    assert [piece.rows for piece in parts] == [8, 8, 8]
    attention = Attention(num_heads=4, num_kv_heads=2, head_dim=8, scale=1.0, rope=None)
    assert recurrent_pieces(attention, Place(0, "attn_qkv", "weight"), of) == []
