"""Tensor names of encoders in GGUF files, and those of Hugging Face checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

_VIT = {
    "v.patch_embd": "embeddings.patch_embedding",
    "v.position_embd": "embeddings.position_embedding",
    "v.post_ln": "post_layernorm",
    "v.blk.{}.attn_q": "encoder.layers.{}.self_attn.q_proj",
    "v.blk.{}.attn_k": "encoder.layers.{}.self_attn.k_proj",
    "v.blk.{}.attn_v": "encoder.layers.{}.self_attn.v_proj",
    "v.blk.{}.attn_out": "encoder.layers.{}.self_attn.out_proj",
    "v.blk.{}.ln1": "encoder.layers.{}.layer_norm1",
    "v.blk.{}.ln2": "encoder.layers.{}.layer_norm2",
    "v.blk.{}.ffn_up": "encoder.layers.{}.mlp.fc1",
    "v.blk.{}.ffn_down": "encoder.layers.{}.mlp.fc2",
}
_PIXTRAL = {
    "v.patch_embd": "patch_conv",
    "v.pre_ln": "ln_pre",
    "v.blk.{}.attn_q": "transformer.layers.{}.attention.q_proj",
    "v.blk.{}.attn_k": "transformer.layers.{}.attention.k_proj",
    "v.blk.{}.attn_v": "transformer.layers.{}.attention.v_proj",
    "v.blk.{}.attn_out": "transformer.layers.{}.attention.o_proj",
    "v.blk.{}.ln1": "transformer.layers.{}.attention_norm",
    "v.blk.{}.ln2": "transformer.layers.{}.ffn_norm",
    "v.blk.{}.ffn_gate": "transformer.layers.{}.feed_forward.gate_proj",
    "v.blk.{}.ffn_up": "transformer.layers.{}.feed_forward.up_proj",
    "v.blk.{}.ffn_down": "transformer.layers.{}.feed_forward.down_proj",
}
_QWEN = {
    "v.patch_embd": "patch_embed.proj",
    "v.position_embd": "pos_embed",
    "v.blk.{}.attn_qkv": "blocks.{}.attn.qkv",
    "v.blk.{}.attn_q": "blocks.{}.attn.query",
    "v.blk.{}.attn_k": "blocks.{}.attn.key",
    "v.blk.{}.attn_v": "blocks.{}.attn.value",
    "v.blk.{}.attn_out": "blocks.{}.attn.proj",
    "v.blk.{}.ln1": "blocks.{}.norm1",
    "v.blk.{}.ln2": "blocks.{}.norm2",
}
_MERGER = {"v.post_ln": "merger.ln_q", "mm.0": "merger.mlp.0", "mm.2": "merger.mlp.2"}


def _under(prefix: str, names: Mapping[str, str]) -> dict[str, str]:
    return {stored: f"{prefix}.{name}" for stored, name in names.items()}


_GEMMA4 = {
    "v.patch_embd": "patch_embedder.input_proj",
    "v.blk.{}.ln1": "encoder.layers.{}.input_layernorm",
    "v.blk.{}.attn_post_norm": "encoder.layers.{}.post_attention_layernorm",
    "v.blk.{}.ln2": "encoder.layers.{}.pre_feedforward_layernorm",
    "v.blk.{}.ffn_post_norm": "encoder.layers.{}.post_feedforward_layernorm",
    "v.blk.{}.attn_q_norm": "encoder.layers.{}.self_attn.q_norm",
    "v.blk.{}.attn_k_norm": "encoder.layers.{}.self_attn.k_norm",
    **{f"v.blk.{{}}.attn_{p}": f"encoder.layers.{{}}.self_attn.{p}_proj" for p in "qkv"},
    "v.blk.{}.attn_out": "encoder.layers.{}.self_attn.o_proj",
    **{
        f"v.blk.{{}}.ffn_{part}": f"encoder.layers.{{}}.mlp.{part}_proj"
        for part in ("gate", "up", "down")
    },
}


_INTERNVL = {
    "v.patch_embd": "embeddings.patch_embeddings.projection",
    **{f"v.blk.{{}}.attn_{p}": f"encoder.layer.{{}}.attention.{p}_proj" for p in "qkv"},
    **{f"v.blk.{{}}.attn_{p}_norm": f"encoder.layer.{{}}.attention.{p}_norm" for p in "qk"},
    "v.blk.{}.attn_out": "encoder.layer.{}.attention.projection_layer",
    "v.blk.{}.ln1": "encoder.layer.{}.layernorm_before",
    "v.blk.{}.ln2": "encoder.layer.{}.layernorm_after",
    "v.blk.{}.ffn_up": "encoder.layer.{}.mlp.fc1",
    "v.blk.{}.ffn_down": "encoder.layer.{}.mlp.fc2",
}
_INTERNVL_BARE = {
    "v.class_embd": "embeddings.cls_token",
    "v.position_embd.weight": "embeddings.position_embeddings",
    "v.blk.{}.ls1.weight": "encoder.layer.{}.lambda_1",
    "v.blk.{}.ls2.weight": "encoder.layer.{}.lambda_2",
}


class ProjectorNames(NamedTuple):
    """The tensors of one kind of projector."""

    modules: Mapping[str, str]
    """GGUF to Hugging Face modules; `{}` is the number of a layer."""
    permuted: bool = False
    """Rows of query and key are interleaved."""
    plus_one: frozenset[str] = frozenset()
    """Norms that are stored as the factor 1 + w."""
    bare: Mapping[str, str] = MappingProxyType({})
    """GGUF tensors to Hugging Face ones without a suffix, which are read as floats."""
    batched: frozenset[str] = frozenset()
    """Tensors that have an axis of one image in front."""
    flat: bool = False
    """Whether the projection of patches is a matrix, whose columns are pixels by row, column and
    channel."""


_PIXTRAL_MERGED = ProjectorNames(
    {
        **_under("vision_tower", _PIXTRAL),
        "mm.input_norm": "multi_modal_projector.norm",
        "mm.patch_merger": "multi_modal_projector.patch_merger.merging_layer",
        "mm.1": "multi_modal_projector.linear_1",
        "mm.2": "multi_modal_projector.linear_2",
    },
    permuted=True,
)

PROJECTOR_NAMES = {
    "gemma3": ProjectorNames(
        _under("vision_tower", _VIT)
        | {"mm.soft_emb_norm": "multi_modal_projector.mm_soft_emb_norm"},
        plus_one=frozenset({"mm.soft_emb_norm.weight"}),
        bare={
            "mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight",
        },
    ),
    "gemma4v": ProjectorNames(
        _under("vision_tower", _GEMMA4)
        | {"mm.input_projection": "embed_vision.embedding_projection"},
        bare={
            "v.position_embd.weight": "vision_tower.patch_embedder.position_embedding_table",
            "v.std_bias": "vision_tower.std_bias",
            "v.std_scale": "vision_tower.std_scale",
        },
        flat=True,
    ),
    "idefics3": ProjectorNames(
        _under("vision_model", _VIT) | {"mm.model.fc": "connector.modality_projection.proj"}
    ),
    "internvl": ProjectorNames(
        _under("vision_tower", _INTERNVL)
        | {
            "mm.model.mlp.0": "multi_modal_projector.layer_norm",
            "mm.model.mlp.1": "multi_modal_projector.linear_1",
            "mm.model.mlp.3": "multi_modal_projector.linear_2",
        },
        bare=_under("vision_tower", _INTERNVL_BARE),
        batched=frozenset({"v.class_embd", "v.position_embd.weight"}),
    ),
    "lfm2": ProjectorNames(
        {
            **_under("vision_tower", _VIT),
            "mm.input_norm": "multi_modal_projector.layer_norm",
            "mm.1": "multi_modal_projector.linear_1",
            "mm.2": "multi_modal_projector.linear_2",
        },
        flat=True,
    ),
    "lightonocr": _PIXTRAL_MERGED,
    "mlp": ProjectorNames(
        {
            **_under("vision_tower", _VIT | {"v.pre_ln": "pre_layrnorm"}),
            "mm.0": "multi_modal_projector.linear_1",
            "mm.2": "multi_modal_projector.linear_2",
        },
        bare={
            "v.class_embd": "vision_tower.embeddings.class_embedding",
            "v.image_newline": "image_newline",
            "model.image_newline": "image_newline",  # Older files.
        },
    ),
    "pixtral": _PIXTRAL_MERGED,
    "qwen2vl_merger": ProjectorNames(
        _under(
            "visual",
            _QWEN
            | _MERGER
            | {"v.blk.{}.ffn_up": "blocks.{}.mlp.fc1", "v.blk.{}.ffn_down": "blocks.{}.mlp.fc2"},
        )
    ),
    "qwen2.5vl_merger": ProjectorNames(
        _under(
            "visual",
            _QWEN
            | _MERGER
            | {f"v.blk.{{}}.ffn_{p}": f"blocks.{{}}.mlp.{p}_proj" for p in ("gate", "up", "down")},
        )
    ),
    "qwen3vl_merger": ProjectorNames(
        _under(
            "visual",
            _QWEN
            | {
                "v.blk.{}.ffn_up": "blocks.{}.mlp.linear_fc1",
                "v.blk.{}.ffn_down": "blocks.{}.mlp.linear_fc2",
                "v.post_ln": "merger.norm",
                "mm.0": "merger.linear_fc1",
                "mm.2": "merger.linear_fc2",
                "v.deepstack.{}.norm": "deepstack_merger_list.{}.norm",
                "v.deepstack.{}.fc1": "deepstack_merger_list.{}.linear_fc1",
                "v.deepstack.{}.fc2": "deepstack_merger_list.{}.linear_fc2",
            },
        )
    ),
}
"""By `clip.projector_type`."""
