"""MiMo-V2."""

from __future__ import annotations

from baton_worker.spec import Attention, Glu, Moe, Sinks
from tests.support.moe_configs import kinds, spec


def test_hub_spelling_of_mimo() -> None:
    decoder = spec(
        "MiMoV2FlashForCausalLM",
        head_dim=24,
        v_head_dim=16,
        hybrid_layer_pattern=[0, 1, 1, 0],
        moe_layer_freq=[0, 1, 1, 1],
        partial_rotary_factor=0.334,
        rope_theta=50_000,
        swa_rope_theta=10_000,
        swa_num_key_value_heads=3,
        sliding_window_size=128,
        routed_scaling_factor=None,
    )
    assert kinds(decoder) == [Glu, Moe, Moe, Moe]
    whole, local = (decoder.layers[layer][0] for layer in (0, 1))
    assert isinstance(whole, Attention) and isinstance(local, Attention)
    assert (whole.num_kv_heads, whole.mask.window, whole.sinks) == (2, None, None)
    assert (local.num_kv_heads, local.mask.window, local.sinks) == (3, 129, Sinks())
    assert whole.rope is not None and (whole.rope.base, whole.rope.dim) == (50_000.0, 8)
    assert local.rope is not None and local.rope.base == 10_000.0
