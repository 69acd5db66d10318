"""EAGLE and EAGLE-3 heads: decoder layers that read the target's hidden states."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

from baton.errors import ModelError
from baton_worker.models.families.common import Config, decoder, glu, gqa, rotated
from baton_worker.models.families.draft_common import Target, draft_head
from baton_worker.models.families.llama4 import llama4
from baton_worker.models.families.mla import deepseek_v3, mistral4
from baton_worker.models.families.moe_common import first
from baton_worker.models.families.multipliers import minicpm
from baton_worker.spec import Decoder, Fusion, Head, JoinedAttention, LayerHead

_SHARED = ("lm_head.", "model.lm_head.", "embed_tokens.", "model.embed_tokens.")
"""Copies of the target's tables, which some checkpoints hold."""


def _llama(c: Config) -> Decoder:
    bias = getattr(c, "attention_bias", False)
    return decoder(c, gqa(c, bias=bias, output_bias=bias), glu(c), head=Head(), unused=_SHARED)


@draft_head("eagle", "EagleLlamaForCausalLM", "EagleForCausalLM")
def eagle_llama(c: Config, target: Target) -> LayerHead:
    """The layers predict the target's normed hidden states, so there is no final norm."""
    body = replace(_llama(c), final_norm=False, head=Head())
    return LayerHead(body, Fusion(), first_norm=False)


def _body(spec: Decoder, names: tuple[tuple[str, str], ...] = ()) -> Decoder:
    """The layers of a family as those of a head that has no tables of its own; `names` are those of
    roles that the family does not have."""
    renames = ((r"^(model\.)?(eagle_)?layers\.", "model.layers."), *spec.tensors.renames)
    unused = (*_SHARED, *spec.tensors.unused)
    names += spec.tensors.names
    tensors = replace(spec.tensors, names=names, unused=unused, renames=renames)
    return replace(spec, head=Head(), tensors=tensors)


def _behind(c: Config, target: Target, family: Callable[[Config], Decoder]) -> Decoder:
    """Layers that are numbered behind those of the target, where their numbers tell their kind."""
    count = len(target.spec.layers)
    grown = SimpleNamespace(**vars(c) | {"num_hidden_layers": count + c.num_hidden_layers})
    spec = family(grown)
    return _body(replace(spec, layers=spec.layers[count:]))


@draft_head(
    "eagle", "EagleDeepSeekMTPModel", "EagleDeepseekV3ForCausalLM", "EagleDeepSeekForCausalLM"
)
def eagle_deepseek(c: Config, target: Target) -> LayerHead:
    """Latent attention; inputs are normed as in multi-token prediction."""
    body = _behind(c, target, deepseek_v3)
    return LayerHead(body, Fusion(body.norm, body.norm), carries_normed=True)


@draft_head("eagle", "EagleMistralLarge3ForCausalLM")
def eagle_mistral_large3(c: Config, target: Target) -> LayerHead:
    """Latent attention in Mistral's format or that of transformers; its dense layers are its own
    first ones."""
    return LayerHead(_body(mistral4(c)), Fusion(), carries_normed=True)


@draft_head("eagle", "EagleLlama4ForCausalLM")
def eagle_llama4(c: Config, target: Target) -> LayerHead:
    """Which layers rotate is given for the head's own layers; which have experts follows from
    `interleave_moe_layer_step` and their number behind the target's."""
    rotates = [int(turns) for turns in rotated(c)]
    changes = {"no_rope_layers": [1] * len(target.spec.layers) + rotates, "moe_layers": None}
    grown = SimpleNamespace(**vars(c) | changes)
    return LayerHead(_behind(grown, target, llama4), Fusion(), carries_normed=True)


@draft_head("eagle", "EagleMiniCPMForCausalLM")
def eagle_minicpm(c: Config, target: Target) -> LayerHead:
    """Both inputs are normed; there is no final norm, and hidden states are as the language head
    reads them."""
    names = {
        "fusion_embedding_norm": "model.input_norm1",
        "fusion_hidden_norm": "model.input_norm2",
    }
    spec = _body(minicpm(c), tuple(names.items()))
    unused = replace(spec.tensors, unused=(*spec.tensors.unused, "norm.", "model.norm."))
    depth = c.scale_depth / math.sqrt(first(c, "mup_denominator", default=c.num_hidden_layers))
    body = replace(spec, final_norm=False, residual_scale=depth, tensors=unused)
    width = c.dim_model_base / c.hidden_size
    return LayerHead(body, Fusion(body.norm, body.norm), hidden_scale=width)


@draft_head("eagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3Speculator")
def eagle3_llama(c: Config, target: Target) -> LayerHead:
    """A vocabulary of its own, of the target's most frequent tokens."""
    body = _llama(c)
    layout = replace(
        body.tensors, renames=((r"^(model\.)?midlayer\.", "model.layers.0."),), unused=()
    )
    vocab = getattr(c, "draft_vocab_size", None) or c.vocab_size
    return LayerHead(
        replace(body, vocab=vocab, head=Head(), tensors=layout),
        JoinedAttention(getattr(c, "norm_before_residual", False)),
        reads=_auxiliary_layers(c, len(target.spec.layers)),
        own_head=True,
        target_vocab=c.vocab_size,
    )


def _auxiliary_layers(c: Config, count: int) -> tuple[int, ...]:
    """The target's layers whose inputs are read: by default an early, a middle and a late one."""
    extra = getattr(c, "eagle_config", None)
    if not getattr(extra, "use_aux_hidden_state", True):
        raise ModelError(
            "This EAGLE-3 head reads the last hidden state alone (use_aux_hidden_state is false), "
            "which Baton cannot serve yet."
        )
    layer_ids = first(extra, "eagle_aux_hidden_state_layer_ids")
    layer_ids = layer_ids or first(
        c, "eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids"
    )
    layers = tuple(layer_ids or (2, count // 2, count - 3))
    if list(layers) != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] < count:
        raise ModelError(
            f"This EAGLE-3 head reads the inputs of layers {list(layers)}, and the model has "
            f"{count} layers. Give the head that was trained for this model."
        )
    return layers
