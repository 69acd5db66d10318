"""Gemma 1 to 3: norms by 1 + w, scaled embeddings, soft caps, windows in most layers."""

from __future__ import annotations

import math
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
    layer_types,
    named,
    rms,
    rope,
)
from baton_worker.spec import (
    Attention,
    Decoder,
    Embedding,
    Head,
    Mask,
    Mixer,
    QkNorm,
    Rope,
    Scores,
)

SANDWICH = named(
    "model.layers.{layer}",
    ffn_norm="pre_feedforward_layernorm",
    ffn_post_norm="post_feedforward_layernorm",
)
TANH = "gelu_pytorch_tanh"


def body(c: Config, mixers: Attention | list[Mixer], **changes: Any) -> Decoder:
    """The body of all three generations; their configs say "gelu" for its tanh form."""
    named = getattr(c, "hidden_act", "gelu")
    tanh = TANH if named == "gelu" else named
    return decoder(
        c,
        mixers,
        glu(c, activation=getattr(c, "hidden_activation", None) or tanh),
        tied=True,
        norm=rms(c, offset=1.0),
        embedding=Embedding(scale=math.sqrt(c.hidden_size)),
        **changes,
    )


@architecture("GemmaForCausalLM")
def gemma(c: Config) -> Decoder:
    bias = getattr(c, "attention_bias", False)
    return body(c, gqa(c, default_head_dim=256, bias=bias, output_bias=bias))


def heads(c: Config) -> Attention:
    """The attention of Gemma 2 and 3 before windows and ropes."""
    bias = getattr(c, "attention_bias", False)
    return gqa(
        c,
        default_head_dim=256,
        bias=bias,
        output_bias=bias,
        scale=getattr(c, "query_pre_attn_scalar", 256) ** -0.5,
        scores=Scores(softcap=getattr(c, "attn_logit_softcapping", None)),
        rope=None,
    )


@architecture("Gemma2ForCausalLM")
def gemma2(c: Config) -> Decoder:
    scores = Scores(softcap=getattr(c, "attn_logit_softcapping", 50.0))
    full = replace(heads(c), rope=rope(c, heads(c).head_dim), scores=scores)
    local = replace(full, mask=Mask(window=getattr(c, "sliding_window", 4096)))
    mixers = [local if kind == "sliding_attention" else full for kind in layer_types(c, 2)]
    head = Head(softcap=getattr(c, "final_logit_softcapping", 30.0))
    return body(c, list(mixers), style="sandwich", names=SANDWICH, head=head)


@architecture("VaultGemmaForCausalLM")
def vault_gemma(c: Config) -> Decoder:
    """VaultGemma (arXiv:2510.15001): Gemma 2 without norms behind its halves."""
    whole = gemma2(c)
    names = named("model.layers.{layer}", ffn_norm="pre_feedforward_layernorm")
    return replace(whole, style="pre", tensors=replace(whole.tensors, names=names))


def ropes_by_layer_type(
    c: Config, dim: int, *, base: float = 1e6, local_base: float = 10_000.0
) -> dict[str, Rope]:
    """The ropes of global and of local layers, from nested `rope_parameters` or the older
    `rope_theta`, `rope_local_base_freq` and `rope_scaling`, which is of the global layers alone.
    The bases are the defaults of the architecture: of Gemma 3 and 3n, if not given."""
    nested = getattr(c, "rope_parameters", None)
    whole, local = (
        vars(getattr(nested, kind, None) or SimpleNamespace(rope_type="default"))
        for kind in ("full_attention", "sliding_attention")
    )
    scaling = vars(getattr(c, "rope_scaling", None) or SimpleNamespace())
    local_base = getattr(c, "rope_local_base_freq", local_base)
    full = SimpleNamespace(**whole | scaling)
    return {
        "full_attention": rope(c, dim, parameters=full, base=base),
        "sliding_attention": rope(
            c, dim, parameters=SimpleNamespace(**{"rope_theta": local_base} | local)
        ),
    }


@architecture("Gemma3ForCausalLM")
def gemma3(c: Config) -> Decoder:
    """Global layers have a rope of their own with a larger base."""
    if getattr(c, "use_bidirectional_attention", False):
        raise ModelError("Baton cannot serve Gemma 3 with use_bidirectional_attention.")
    ropes = ropes_by_layer_type(c, heads(c).head_dim)
    windows = {"full_attention": None, "sliding_attention": getattr(c, "sliding_window", 4096)}
    shared = replace(heads(c), qk_norm=QkNorm(rms(c, offset=1.0)))
    mixers = [
        replace(shared, rope=ropes[kind], mask=Mask(window=windows[kind]))
        for kind in layer_types(c, getattr(c, "sliding_window_pattern", 6))
    ]
    head = Head(softcap=getattr(c, "final_logit_softcapping", None))
    return body(c, list(mixers), style="sandwich", names=SANDWICH, head=head)
