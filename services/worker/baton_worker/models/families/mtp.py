"""Multi-token prediction (DeepSeek-V3, arXiv:2412.19437): one more layer in a target's checkpoint,
over its hidden states and the embeddings of the next tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

from baton_worker.models.families.common import Config, glu, spelled
from baton_worker.models.families.delta import qwen3_next
from baton_worker.models.families.draft_common import Target, draft_head
from baton_worker.models.families.llama import mimo
from baton_worker.models.families.mla import deepseek_v3, glm4_moe_lite, longcat_flash
from baton_worker.models.families.moe import ernie_moe, exaone_moe, glm4_moe
from baton_worker.models.families.pangu import pangu_pro_moe, pangu_ultra_moe
from baton_worker.models.families.step import step3p5
from baton_worker.models.families.vision_language import glm_ocr_text, text_of
from baton_worker.spec import Decoder, Fusion, Head, LayerHead, TensorLayout

_NUMBERED = {
    "fusion": "eh_proj",
    "fusion_embedding_norm": "enorm",
    "fusion_hidden_norm": "hnorm",
    "norm": "shared_head.norm",
}
"""Names in a layer that is numbered behind those of the target."""
_LAYERS = ((r"^model\.layers\.0\.layers\.0\.", "model.layers.0."),)


def _next_layer(c: Config, family: Callable[[Config], Decoder], number: int = 0) -> Decoder:
    """The layer of this number, from 0, behind those of the target, which is continued. Fields with
    a value per layer are continued by their last."""
    count, grown = c.num_hidden_layers, copy.copy(c)
    for name, value in vars(c).items():
        if isinstance(value, list) and len(value) == count and name != "architectures":
            setattr(grown, name, [*value, *[value[-1]] * (number + 1)])
    grown.num_hidden_layers = count + number + 1
    spec = family(grown)
    return replace(spec, layers=spec.layers[count + number :], head=Head())


def _every(c: Config, head: Callable[[int], LayerHead]) -> LayerHead:
    """The heads of a config, by number: each makes a draft of its own."""
    count = getattr(c, "num_nextn_predict_layers", None) or 1
    return replace(head(0), further=tuple(head(number) for number in range(1, count)))


def _head(
    decoder: Decoder,
    prefix: str,
    names: dict[str, str],
    *,
    unused: tuple[str, ...] = (),
    carries_normed: bool = False,
    hidden_first: bool = False,
    renames: tuple[tuple[str, str], ...] = (),
) -> LayerHead:
    """The head whose tensors begin with a prefix: `names` and `unused` are those behind it. What is
    not `renames`d besides is named as in a layer of the target."""
    at = "model.layers.0."
    layout = replace(
        decoder.tensors,
        names=(*decoder.tensors.names, *((role, at + name) for role, name in names.items())),
        renames=(
            ("^" + prefix.replace(".", r"\."), at),
            *renames,
            *decoder.tensors.renames,
        ),
        unused=tuple(at + name for name in unused),
    )
    norm = decoder.norm
    return LayerHead(
        replace(decoder, tensors=layout),
        Fusion(norm, norm, hidden_first=hidden_first),
        carries_normed=carries_normed,
        prefixes=(prefix,),
    )


def _numbered(c: Config, family: Callable[[Config], Decoder]) -> LayerHead:
    """DeepSeek-V3's layout; its copies of the tables are the target's."""
    unused = ("embed_tokens.", "shared_head.head.")

    def head(number: int) -> LayerHead:
        prefix = f"model.layers.{c.num_hidden_layers + number}."
        return _head(_next_layer(c, family, number), prefix, _NUMBERED, unused=unused)

    return _every(c, head)


@draft_head("mtp", "DeepSeekMTPModel", within=("DeepseekV3ForCausalLM",))
def deepseek_mtp(c: Config, target: Target) -> LayerHead:
    return _numbered(c, deepseek_v3)


@draft_head("mtp", "Glm4MoeMTPModel", within=("Glm4MoeForCausalLM",))
def glm4_moe_mtp(c: Config, target: Target) -> LayerHead:
    return _numbered(c, glm4_moe)


@draft_head("mtp", "Glm4MoeLiteMTPModel", within=("Glm4MoeLiteForCausalLM",))
def glm4_moe_lite_mtp(c: Config, target: Target) -> LayerHead:
    return _numbered(c, glm4_moe_lite)


@draft_head(
    "mtp",
    "OpenPanguMTPModel",
    within=("PanguUltraMoEForCausalLM", "OpenPanguForCausalLM", "PanguProMoEV2ForCausalLM"),
)
def openpangu_mtp(c: Config, target: Target) -> LayerHead:
    return _numbered(c, pangu_ultra_moe if hasattr(c, "kv_lora_rank") else pangu_pro_moe)


@draft_head("mtp", "Step3p5MTP", within=("Step3p5ForCausalLM",))
def step3p5_mtp(c: Config, target: Target) -> LayerHead:
    """A language head of its own. Some checkpoints have the layer one level deeper."""
    renames = (
        (r"^model\.layers\.0\.transformer\.", "model.layers.0."),
        (r"^model\.layers\.0\.shared_head\.output\.", "model.layers.0.shared_head.head."),
    )
    names = _NUMBERED | {"head": "shared_head.head"}

    def head(number: int) -> LayerHead:
        prefix, layer = (
            f"model.layers.{c.num_hidden_layers + number}.",
            _next_layer(c, step3p5, number),
        )
        layer_head = _head(layer, prefix, names, unused=("embed_tokens.",), renames=renames)
        return replace(layer_head, own_head=True)

    return _every(c, head)


@draft_head("mtp", "GlmOcrMTPModel", within=("GlmOcrForConditionalGeneration",))
def glm_ocr_mtp(c: Config, target: Target) -> LayerHead:
    text = text_of(c)
    prefix = f"model.language_model.layers.{text.num_hidden_layers}."
    unused = ("embed_tokens.", "shared_head.head.")
    return _head(_next_layer(text, glm_ocr_text), prefix, _NUMBERED, unused=unused)


@draft_head("mtp", "LongCatFlashMTPModel", within=("LongcatFlashForCausalLM",))
def longcat_flash_mtp(c: Config, target: Target) -> LayerHead:
    """One latent attention and one dense feed-forward, in the plain order."""
    whole = longcat_flash(c)
    layer = (whole.layers[0][0], glu(spelled(c, intermediate_size="ffn_hidden_size")))
    decoder = replace(whole, layers=(layer,), style="pre", head=Head(), tensors=TensorLayout())
    names = {
        "fusion": "eh_proj",
        "fusion_embedding_norm": "enorm.m",
        "fusion_hidden_norm": "hnorm.m",
        "norm": "norm",
    }
    renames = (*_LAYERS, (r"^model\.layers\.0\.transformer_layer\.", "model.layers.0."))
    unused = ("embed_tokens.",)
    return _head(decoder, "model.mtp.", names, unused=unused, carries_normed=True, renames=renames)


@draft_head("mtp", "ErnieMTPModel", within=("Ernie4_5_MoeForCausalLM", "Ernie4_5_MoEForCausalLM"))
def ernie_mtp(c: Config, target: Target) -> LayerHead:
    """A dense layer without a final norm, whose parts are numbered one by one."""
    layer = _next_layer(c, ernie_moe)
    dense = glu(c, bias=getattr(c, "use_bias", False))
    decoder = replace(layer, layers=((layer.layers[0][0], dense),), final_norm=False)
    names = {
        "fusion": "mtp_linear_proj",
        "fusion_embedding_norm": "mtp_emb_norm",
        "fusion_hidden_norm": "mtp_hidden_norm",
    }
    renames = (
        (r"^model\.layers\.0\.block\.0\.", "model.layers.0."),
        (r"^model\.layers\.0\.(emb_norm|hidden_norm|linear_proj)\.0\.", r"model.layers.0.mtp_\1."),
    )
    return _head(decoder, "model.mtp_", names, renames=renames)


@draft_head("mtp", "MiMoMTPModel", within=("MiMoForCausalLM",))
def mimo_mtp(c: Config, target: Target) -> LayerHead:
    names = {
        "fusion": "input_proj",
        "fusion_embedding_norm": "token_layernorm",
        "fusion_hidden_norm": "hidden_layernorm",
        "norm": "final_layernorm",
    }

    def head(number: int) -> LayerHead:
        layer, prefix = _next_layer(c, mimo, number), f"model.mtp_layers.{number}."
        return _head(layer, prefix, names, carries_normed=True, hidden_first=True)

    return _every(c, head)


_FC = {
    "fusion": "fc",
    "fusion_embedding_norm": "pre_fc_norm_embedding",
    "fusion_hidden_norm": "pre_fc_norm_hidden",
    "norm": "norm",
}


@draft_head("mtp", "Qwen3NextMTP", within=("Qwen3NextForCausalLM",))
def qwen3_next_mtp(c: Config, target: Target) -> LayerHead:
    """Full attention, independent of the layer before."""
    c = copy.copy(c)
    count = c.num_hidden_layers
    c.layer_types = ["full_attention"] * count
    return _head(_next_layer(c, qwen3_next), "mtp.", _FC, carries_normed=True, renames=_LAYERS)


@draft_head("mtp", "ExaoneMoeMTP", within=("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"))
def exaone_moe_mtp(c: Config, target: Target) -> LayerHead:
    """A dense layer, whose window has a key of its own in the config."""
    kinds = getattr(c, "mtp_layer_types", None)
    grown = copy.copy(c)
    if kinds and getattr(c, "layer_types", None):
        grown.layer_types = [*c.layer_types[:-1], kinds[0]]
    layer = _next_layer(grown, exaone_moe)
    decoder = replace(layer, layers=((layer.layers[0][0], glu(c)),))
    return _head(decoder, "mtp.", _FC, carries_normed=True, renames=_LAYERS)
