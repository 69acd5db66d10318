"""Molmo 2 (arXiv:2601.10611): overlapping crops, windows of whose patches are pooled by attention
and added to the embeddings of their tokens."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.common import QKV, Config, architecture
from baton_worker.models.families.llama import qwen3
from baton_worker.models.families.vision_common import with_spans, with_tower
from baton_worker.spec import (
    Attention,
    Decoder,
    Fused,
    Head,
    Mlp,
    Norm,
    OverlappingCrops,
    Patches,
    Projections,
    TensorLayout,
    Vision,
    VisionTower,
)

_ROOT = "vision_backbone"
_VIT = f"{_ROOT}.image_vit"
_LAYER = f"{_VIT}.transformer.resblocks.{{layer}}"
_NAMES = {
    "patches": f"{_VIT}.patch_embedding",
    "positions": f"{_VIT}.positional_embedding",
    "mixer_norm": f"{_LAYER}.attention_norm",
    "query": f"{_LAYER}.attention.wq",
    "key": f"{_LAYER}.attention.wk",
    "value": f"{_LAYER}.attention.wv",
    "output": f"{_LAYER}.attention.wo",
    "ffn_norm": f"{_LAYER}.ffn_norm",
    "up": f"{_LAYER}.feed_forward.w1",
    "down": f"{_LAYER}.feed_forward.w2",
}
_TEXT_LAYER = "model.layers.{layer}"
_RENAMES = (
    (rf"^model\.{_ROOT}\.", f"{_ROOT}."),
    (rf"^{_VIT}\.positional_embedding$", f"{_VIT}.positional_embedding.weight"),
    (r"^model\.transformer\.wte\.embedding$", "model.embed_tokens.weight"),
    (r"^model\.transformer\.wte\.new_embedding$", "model.embed_tokens.extra.weight"),
    (r"^model\.transformer\.ln_f\.", "model.norm."),
    (r"^model\.transformer\.blocks\.", "model.layers."),
    (r"^(model\.layers\.\d+)\.attn_norm\.", r"\1.input_layernorm."),
    (r"^(model\.layers\.\d+)\.ff_norm\.", r"\1.post_attention_layernorm."),
    (r"^(model\.layers\.\d+)\.self_attn\.attn_out\.", r"\1.self_attn.o_proj."),
    (r"^(model\.layers\.\d+)\.mlp\.ff_out\.", r"\1.mlp.down_proj."),
)
"""Names of Ai2's own code to those of Qwen3."""
_VISION: dict[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 25,
    "num_attention_heads": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "image_size": (378, 378),
    "patch_size": 14,
}
_ADAPTER: dict[str, Any] = {
    "hidden_size": 1152,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 72,
    "hidden_act": "silu",
    "intermediate_size": 18_944,
    "vision_feature_layer": (24, 18),
}
_NEW = {
    "image_default_input_size": "image_size",
    "image_patch_size": "patch_size",
    "vit_layers": "vision_feature_layer",
    "qkv_bias": "attention_bias",
    "layer_norm_eps": "rms_norm_eps",
}
"""Names of Ai2's own configs to those of transformers."""
MARGINS = (4, 4)
"""Patches of a crop that the next one shows, too, at its begin and at its end."""


@architecture("Molmo2ForConditionalGeneration")
def molmo2(c: Config) -> Decoder:
    """The tokens of an image see one another in both directions."""
    decoder, v = with_spans(_text(c)), _part(c, ("vision_config", "vit_config"), _VISION)
    a = _part(c, ("adapter_config",), _ADAPTER)
    if getattr(a, "mlp_bias", False):
        raise AttributeError("mlp_bias of adapter_config is true")
    layers = tuple(at % v.num_hidden_layers + 1 for at in a.vision_feature_layer)
    stack = replace(_stack(v), layers=_stack(v).layers[: max(layers)])
    unused = tuple(f"{_LAYER.format(layer=n)}." for n in range(max(layers), v.num_hidden_layers))
    tower = VisionTower(
        stack=stack,
        projector=(),
        image_token=getattr(c, "image_patch_id", 151_938),
        hidden=decoder.hidden,
        taps=layers,
        arrangement=OverlappingCrops(
            name=_ROOT,
            side=v.image_size[0] // v.patch_size,
            margins=MARGINS,
            inputs=v.hidden_size * len(layers),
            width=a.hidden_size,
            num_heads=a.num_attention_heads,
            num_kv_heads=a.num_key_value_heads,
            head_dim=a.head_dim,
            intermediate=a.intermediate_size,
            activation=a.hidden_act,
            hidden=decoder.hidden,
        ),
        bidirectional=True,
        added=True,
    )
    return with_tower(decoder, tower, _RENAMES, unused)


def _part(c: Config, names: tuple[str, ...], defaults: dict[str, Any]) -> Any:
    parts = [getattr(c, name, None) for name in names]
    fields: dict[str, Any] = next((vars(part) for part in parts if part is not None), {})
    values = {_NEW.get(name, name): at for name, at in fields.items() if at is not None}
    if "rms_norm_eps" in values:
        values["layer_norm_eps"] = values["rms_norm_eps"]
    return SimpleNamespace(**defaults | values)


def _text(c: Config) -> Decoder:
    """Qwen3, with `additional_vocab_size` tokens that it reads and never samples."""
    t = _part(c, ("text_config",), {"additional_vocab_size": 128, "tie_word_embeddings": False})
    if getattr(t, "qk_norm_type", "qwen3") != "qwen3" or getattr(t, "norm_after", False):
        raise AttributeError("qk_norm_type other than qwen3, or norm_after")
    scaled = getattr(t, "rope_scaling_layers", None)
    if scaled is not None and list(scaled) != list(range(t.num_hidden_layers)):
        raise AttributeError("rope_scaling_layers other than all")
    extra = t.additional_vocab_size
    t.vocab_size += extra
    t.served_length = getattr(c, "served_length", None)
    decoder = qwen3(t)
    fused = (
        Fused(f"{_TEXT_LAYER}.self_attn.att_proj", QKV),
        Fused(f"{_TEXT_LAYER}.mlp.ff_proj", ("up", "gate")),
    )
    return replace(
        decoder,
        embedding=replace(decoder.embedding, extra=extra),
        head=replace(decoder.head, unsaid=extra),
        tensors=replace(decoder.tensors, fused=(*decoder.tensors.fused, *fused)),
    )


def _stack(v: Any) -> Vision:
    """SigLIP's layers, whose states are not normed."""
    dim = v.hidden_size // v.num_attention_heads
    attention = Attention(
        v.num_attention_heads,
        v.num_attention_heads,
        dim,
        1 / math.sqrt(dim),
        None,
        projections=Projections(bias=True, output_bias=True),
    )
    return Vision(
        hidden=v.hidden_size,
        vocab=0,
        layers=((attention, Mlp(v.intermediate_size, v.hidden_act, bias=True)),)
        * v.num_hidden_layers,
        norm=Norm(v.layer_norm_eps, "layer", bias=True),
        final_norm=False,
        head=Head(tied=True),
        patches=Patches(v.image_size[0], v.patch_size, bias=True, flat=True, channels_last=True),
        tensors=TensorLayout(names=tuple(_NAMES.items())),
    )
