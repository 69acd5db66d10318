"""Configs of mixtures, and the kinds of feed-forward that they resolve to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from baton_worker.models.resolve import resolve
from baton_worker.spec import (
    Decoder,
)

BODY: dict[str, Any] = {
    **{"hidden_size": 48, "vocab_size": 320, "intermediate_size": 80, "num_hidden_layers": 4},
    **{"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256},
    **{"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24},
}


def spec(architecture: str, **fields: Any) -> Decoder:
    return resolve(SimpleNamespace(**BODY | fields, architectures=[architecture]))


def kinds(decoder: Decoder) -> list[type | None]:
    return [None if ffn is None else type(ffn) for _, ffn in decoder.layers]
