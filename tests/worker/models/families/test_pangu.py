"""Unsupported openPangu configs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.models.families.pangu import pangu_pro_moe
from baton_worker.spec import Attention, Moe

FIELDS: dict[str, Any] = {
    **{"hidden_size": 48, "vocab_size": 320, "intermediate_size": 80, "num_hidden_layers": 2},
    **{"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256},
    **{"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24},
    **{"qk_nope_dim": 8, "qk_rope_dim": 4, "v_channels": 6, "param_sink_number": 5},
    **{"first_k_dense_replace": 1, "rope_theta": 10_000.0},
}


def test_sinks_and_narrow_values() -> None:
    decoder = pangu_pro_moe(SimpleNamespace(**FIELDS))
    heads, ffn = decoder.layers[1]
    assert isinstance(heads, Attention) and isinstance(ffn, Moe) and decoder.style == "pre"
    assert (heads.head_dim, heads.value_dim, heads.sink_keys) == (12, 6, 5)
    assert heads.rope is not None and heads.rope.dim == 4 and heads.qk_norm.keys_only


@pytest.mark.parametrize(
    "field", [{"use_mhc": True}, {"kv_lora_rank": 4}, {"interleaved_sliding_window": 8}]
)
def test_other_forms_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="openPangu"):
        pangu_pro_moe(SimpleNamespace(**FIELDS | field))
