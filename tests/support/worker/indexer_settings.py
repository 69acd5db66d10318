"""Settings of an indexer."""

from __future__ import annotations

from baton_worker import spec

ROPE = spec.Rope(4, 100.0, 256, interleaved=True)


SETTINGS = spec.SparseLatentAttention(
    num_heads=3,
    kv_rank=6,
    nope_dim=6,
    rope_dim=4,
    value_dim=5,
    scale=0.4,
    rope=ROPE,
    norm=spec.Norm(1e-6),
    query_rank=7,
    top_k=11,
    indexer=spec.Indexer(8, 9, spec.Norm(1e-6, kind="layer", bias=True)),
)
