"""Command R: parallel blocks, LayerNorm without bias, interleaved rope, scaled logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton.errors import ModelError
from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    layer_norm,
    rotating_windows,
)
from baton_worker.models.families.moe_common import FUSED, draft_layers, router
from baton_worker.spec import (
    Attention,
    Decoder,
    Ffn,
    Head,
    Mixer,
    Moe,
    Norm,
    QkNorm,
    Router,
)


@architecture("CohereForCausalLM")
def cohere(c: Config) -> Decoder:
    normed = QkNorm(_norm(c), over="each") if getattr(c, "use_qk_norm", False) else None
    return _parallel(c, _heads(c, base=500_000.0, qk_norm=normed))


@architecture("Cohere2ForCausalLM")
def cohere2(c: Config) -> Decoder:
    every = getattr(c, "sliding_window_pattern", 4)
    window = getattr(c, "sliding_window", 4096)
    return _parallel(c, rotating_windows(c, _heads(c), window, every))


@architecture("Cohere2MoeForCausalLM")
def cohere2_moe(c: Config) -> Decoder:
    """Command A+: Command R with experts, behind dense layers that may have their own pattern of
    windows."""
    eps = getattr(c, "rms_norm_eps", None)
    shared = getattr(c, "num_shared_experts", 0) * c.intermediate_size
    moe = Moe(
        _router(c),
        glu(c),
        shared=replace(glu(c), intermediate=shared) if shared else None,
        scale=_share(c) if shared else 1.0,
    )
    size = getattr(c, "prefix_dense_intermediate_size", None) or c.intermediate_size
    ffns: dict[str, Ffn] = {"sparse": moe, "dense": replace(glu(c), intermediate=size)}
    kinds = _mlp_types(c)
    halves = [ffns[kind] for kind in kinds]
    whole = _parallel(c, _mixers(c, kinds), halves, stacked=FUSED, unused=draft_layers(c))
    return whole if eps is None else replace(whole, norm=Norm(eps=eps))


def _router(c: Config) -> Router:
    """The weights of a softmax always add up to 1."""
    score = getattr(c, "expert_selection_fn", "softmax")
    normed = score == "softmax" or getattr(c, "norm_topk_prob", True)
    top_k = getattr(c, "num_experts_per_tok", 2)
    return router(c, top_k=top_k, score=score, norm=1.0 if normed else None, by_logits=True)


def _share(c: Config) -> float:
    """The factor on routed and shared experts together."""
    shares = {"average": 0.5, "sum": 1.0}
    strategy = getattr(c, "shared_expert_combination_strategy", "average")
    if strategy not in shares:
        raise ModelError(
            f"config.json: shared_expert_combination_strategy '{strategy}' is unknown. Known: "
            f"{', '.join(shares)}."
        )
    return shares[strategy]


def _mlp_types(c: Config) -> list[str]:
    dense = getattr(c, "first_k_dense_replace", 0)
    listed: list[str] | None = getattr(c, "mlp_layer_types", None)
    return listed or ["sparse" if n >= dense else "dense" for n in range(c.num_hidden_layers)]


def _mixers(c: Config, kinds: list[str]) -> list[Mixer]:
    """As in `cohere2`; dense layers without windows are rotated if none of them has one."""
    dense = getattr(c, "first_k_dense_replace", 0)
    every = getattr(c, "prefix_dense_sliding_window_pattern", 1)
    rest = getattr(c, "sliding_window_pattern", 4)
    types = getattr(c, "layer_types", None) or [
        "sliding_attention" if (n + 1) % period else "full_attention"
        for count, period in ((dense, every), (c.num_hidden_layers - dense, rest))
        for n in range(count)
    ]
    heads = _heads(c, default_head_dim=128)
    mixers = rotating_windows(
        SimpleNamespace(**vars(c) | {"layer_types": types}),
        heads,
        getattr(c, "sliding_window", 4096),
    )
    turned = [kind == "dense" and every == 1 for kind in kinds]
    return [
        heads if turns and named == "full_attention" else mixer
        for mixer, turns, named in zip(mixers, turned, types, strict=True)
    ]


def _norm(c: Config) -> Norm:
    return layer_norm(getattr(c, "layer_norm_eps", 1e-5), bias=False)


def _heads(c: Config, **changes: Any) -> Attention:
    bias = getattr(c, "attention_bias", False)
    return gqa(c, interleaved=True, bias=bias, output_bias=bias, **changes)


def _parallel(
    c: Config, mixers: Mixer | Sequence[Mixer], ffns: Sequence[Ffn] = (), **changes: Any
) -> Decoder:
    """`ffns` are the feed-forwards of the layers where these are not all alike."""
    head = Head(scale=getattr(c, "logit_scale", 0.0625))
    halves = ffns or glu(c)
    return decoder(
        c, mixers, halves, tied=True, norm=_norm(c), style="parallel", head=head, **changes
    )
