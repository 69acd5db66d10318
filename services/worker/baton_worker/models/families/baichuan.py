"""Baichuan 1 and 2: q, k and v packed; the 13B models have ALiBi instead of a rope."""

from __future__ import annotations

from dataclasses import replace

from baton_worker.models.families.common import (
    QKV,
    Config,
    alibi,
    architecture,
    decoder,
    glu,
    gqa,
    spelled,
)
from baton_worker.spec import (
    Decoder,
    Fused,
    Head,
    Scores,
)

PACKED = (Fused("model.layers.{layer}.self_attn.W_pack", QKV),)
FIRST_VOCABULARY = 64_000
"""Vocabulary size of Baichuan 1, which has a plain head; Baichuan 2 has a NormHead
(arXiv:2309.10305)."""


@architecture("BaiChuanForCausalLM")
def baichuan_7b(c: Config) -> Decoder:
    return decoder(c, gqa(c), glu(c), fused=PACKED)


@architecture("BaichuanForCausalLM")
def baichuan(c: Config) -> Decoder:
    """Only the 7B models name their rope's `max_position_embeddings`."""
    head = Head(unit_rows=c.vocab_size != FIRST_VOCABULARY)
    if hasattr(c, "max_position_embeddings"):
        return replace(baichuan_7b(c), head=head)
    c = spelled(c, max_position_embeddings="model_max_length")
    heads = gqa(c, rope=None, scores=Scores(slopes=alibi(c.num_attention_heads)))
    return decoder(c, heads, glu(c), head=head, fused=PACKED)
