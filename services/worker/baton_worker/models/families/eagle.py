"""EAGLE and EAGLE-3 heads: decoder layers that read the target's hidden states."""

from __future__ import annotations

from dataclasses import replace

from baton.errors import ModelError
from baton_worker.models.families.common import Config, decoder, glu, gqa
from baton_worker.models.families.draft_common import Target, draft_head
from baton_worker.models.families.moe_common import first
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
    given = first(extra, "eagle_aux_hidden_state_layer_ids")
    given = given or first(c, "eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
    layers = tuple(given or (2, count // 2, count - 3))
    if list(layers) != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] < count:
        raise ModelError(
            f"This EAGLE-3 head reads the inputs of layers {list(layers)}, and the model has "
            f"{count} layers. Give the head that was trained for this model."
        )
    return layers
