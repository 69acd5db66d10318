"""Granite mixtures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    named,
)
from baton_worker.models.families.moe_common import (
    EXPERT_GATE_UP,
    LAYER,
    SHARED,
    router,
    small,
    stacked,
)
from baton_worker.models.families.multipliers import with_windows
from baton_worker.spec import (
    Attention,
    Decoder,
    Embedding,
    Ffn,
    Fused,
    Glu,
    Head,
    Mixer,
    Moe,
    Stacked,
)

_PLAIN = {
    "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
"""Defaults of transformers."""


@architecture("GraniteMoeSharedForCausalLM", "GraniteMoeForCausalLM")
def granite_moe(c: Config) -> Decoder:
    size = getattr(c, "shared_intermediate_size", 0)
    moe = Moe(router(c, norm=1.0), glu(c), shared=small(c, size) if size else None)
    return granite_body(c, granite_heads(c), moe)


@architecture("GraniteMoeSWAForCausalLM")
def granite_moe_swa(c: Config) -> Decoder:
    """Granite mixtures with windows, sinks and a rope of each layer's own."""
    c = SimpleNamespace(**_PLAIN | vars(c))
    whole = granite_moe(c)
    return replace(whole, layers=with_windows(c, whole))


def granite_heads(c: Config, **changes: Any) -> Attention:
    """Heads with the config's attention scale."""
    bias = getattr(c, "attention_bias", False)
    return gqa(c, bias=bias, output_bias=bias, scale=c.attention_multiplier, **changes)


def granite_body(
    c: Config, mixers: Mixer | Sequence[Mixer], ffn: Ffn, fused: Sequence[Fused] = ()
) -> Decoder:
    """The body of Granites with experts: multipliers and names. Without routed experts, the shared
    expert is the feed-forward."""
    block = f"{LAYER}.block_sparse_moe"
    gate, up, down = ("gate", "up", "down") if isinstance(ffn, Glu) else SHARED
    return decoder(
        c,
        mixers,
        ffn,
        head=Head(scale=1.0 / c.logits_scaling),
        embedding=Embedding(scale=c.embedding_multiplier),
        residual_scale=c.residual_multiplier,
        names=named(
            LAYER,
            router="block_sparse_moe.router.layer",
            **{gate: "shared_mlp.gate", up: "shared_mlp.up", down: "shared_mlp.output_linear"},
        ),
        fused=(Fused(f"{LAYER}.shared_mlp.input_linear", (gate, up)), *fused),
        stacked=(
            Stacked(f"{block}.input_linear.weight", EXPERT_GATE_UP),
            Stacked(f"{block}.output_linear.weight", ("expert_down",)),
            *stacked(f"{block}.experts"),
        ),
        renames=((r"\.router\.weight$", ".router.layer.weight"),),
    )
