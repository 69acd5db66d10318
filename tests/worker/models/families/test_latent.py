"""What a config says of latent attention."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from baton_worker.models.families.latent import latent

FIELDS: dict[str, Any] = {
    **{"num_attention_heads": 6, "kv_lora_rank": 14, "qk_nope_head_dim": 10},
    **{"qk_rope_head_dim": 6, "v_head_dim": 12, "max_position_embeddings": 256},
}


def test_plain_rope_leaves_the_scale_alone() -> None:
    heads = latent(SimpleNamespace(**FIELDS))
    assert heads.scale == 0.25 and heads.width == 20 and heads.query_rank is None
    assert heads.rope.interleaved and heads.rope.dim == 6


@pytest.mark.parametrize(("weight", "expected"), [(0.0, 1.0), (1.0, 0.1 * math.log(40) + 1)])
def test_yarn_warms_the_scores(weight: float, expected: float) -> None:
    scaling = SimpleNamespace(
        type="yarn", factor=40, mscale_all_dim=weight, original_max_position_embeddings=64
    )
    heads = latent(SimpleNamespace(**FIELDS, rope_scaling=scaling))
    assert heads.scale == pytest.approx(0.25 * expected**2)
