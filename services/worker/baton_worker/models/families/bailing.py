"""Ling and Ring 2.0 (Bailing)."""

from __future__ import annotations

from baton.errors import ModelError
from baton_worker.models.families.common import (
    QKV,
    Config,
    architecture,
    decoder,
    gqa,
    named,
    rms,
)
from baton_worker.models.families.moe_common import (
    FUSED,
    LAYER,
    after_dense,
    draft_layers,
    first,
    no_auxiliary_loss,
    small,
)
from baton_worker.spec import Decoder, Fused, Moe, QkNorm


@architecture("BailingMoeV2ForCausalLM")
def bailing2(c: Config) -> Decoder:
    """GLM-4.5's body (arXiv:2507.17702) under names of its own."""
    if getattr(c, "norm_head", False):
        raise ModelError(
            "config.json: norm_head is true, and Baton does not normalise the columns of this "
            "head. Divide those of lm_head.weight by their norms in the checkpoint, and set "
            "norm_head to false."
        )
    bias, norm = getattr(c, "use_bias", False), rms(c)
    normed = QkNorm(norm) if getattr(c, "use_qk_norm", True) else None
    heads = gqa(
        c,
        bias=bias or getattr(c, "use_qkv_bias", False),
        output_bias=bias,
        qk_norm=normed,
        partial=0.5,
    )
    names = named(
        LAYER,
        embedding="model.word_embeddings",
        query="attention.query",
        key="attention.key",
        value="attention.value",
        output="attention.dense",
        query_norm="attention.query_layernorm",
        key_norm="attention.key_layernorm",
        router_correction="mlp.gate.expert_bias",
    )
    return decoder(
        c,
        heads,
        after_dense(c, _moe(c)),
        norm=norm,
        names=names,
        fused=(Fused(f"{LAYER}.attention.query_key_value", QKV),),
        stacked=FUSED,
        unused=draft_layers(c),
    )


def _moe(c: Config) -> Moe:
    routing = no_auxiliary_loss(
        c,
        score=getattr(c, "score_function", "sigmoid"),
        correction=getattr(c, "moe_router_enable_expert_bias", True),
    )
    size = first(c, "moe_shared_expert_intermediate_size", "moe_intermediate_size")
    count = first(c, "num_shared_experts", default=0)
    return Moe(routing, small(c), shared=small(c, size * count) if count else None)
