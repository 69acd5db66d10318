"""A spec whose layers keep pages of different shapes."""

from __future__ import annotations

import pytest

from baton_worker.spec import (
    Attention,
    Decoder,
    Glu,
    Head,
    Norm,
    Rope,
)


@pytest.fixture
def kv_spec() -> Decoder:
    rope = Rope(dim=8, base=10_000.0, max_position=64)
    small = Attention(num_heads=4, num_kv_heads=2, head_dim=8, scale=1.0, rope=rope)
    large = Attention(num_heads=4, num_kv_heads=1, head_dim=16, scale=1.0, rope=rope)
    layers = ((small, Glu(4)), (large, Glu(4)))
    return Decoder(hidden=8, vocab=10, layers=layers, norm=Norm(1e-6), head=Head())
