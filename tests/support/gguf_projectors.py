"""A tiny model that sees as two GGUF files: what llama.cpp's convert_hf_to_gguf.py writes with and
without --mmproj."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import gguf
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.gguf_conversion import (
    Step,
    Tensors,
    convert,
    delta_nets,
    field,
    interleave,
    norms_plus_one,
    permuted,
    tiled_deltas,
    write,
)


class Pair(NamedTuple):
    """How one family is written."""

    kind: str
    """`clip.projector_type`."""
    text: str
    """Architecture of the language model."""
    vision: Callable[[SimpleNamespace], dict[str, Any]]
    """Fields of the encoder beyond the common ones."""
    metadata: Callable[[SimpleNamespace], dict[str, Any]] = lambda c: {}
    """Fields of the language model beyond the common ones."""
    steps: tuple[Step, ...] = ()
    """What happens to the tensors of the language model."""


def _sections(c: SimpleNamespace) -> dict[str, Any]:
    return {"rope.dimension_sections": [*c.rope_parameters.mrope_section, 0]}


def _window(c: SimpleNamespace) -> dict[str, Any]:
    return {"attention.sliding_window": c.sliding_window}


def _delta(c: SimpleNamespace) -> dict[str, Any]:
    width = c.linear_num_value_heads * c.linear_value_head_dim
    return _sections(c) | {
        "ssm.conv_kernel": c.linear_conv_kernel_dim,
        "ssm.state_size": c.linear_key_head_dim,
        "ssm.group_count": c.linear_num_key_heads,
        "ssm.time_step_rank": c.linear_num_value_heads,
        "ssm.inner_size": width,
        "rope.dimension_count": c.head_dim,
        "full_attention_interval": c.layer_types.index("full_attention") + 1,
    }


def _gemma4(c: SimpleNamespace) -> dict[str, Any]:
    size = c.per_layer_config.__dict__["1"].head_dim
    return _window(c) | {
        "attention.sliding_window_pattern": [kind != "full_attention" for kind in c.layer_types],
        "attention.key_length": size,
        "attention.key_length_swa": c.head_dim,
        "rope.freq_base": float(c.rope_parameters.full_attention.rope_theta),
        "rope.freq_base_swa": float(c.rope_parameters.sliding_attention.rope_theta),
    }


def _delta_moe(c: SimpleNamespace) -> dict[str, Any]:
    shared = {"expert_shared_feed_forward_length": c.shared_expert_intermediate_size}
    return _delta(c) | _experts(c) | shared


def _experts(c: SimpleNamespace) -> dict[str, Any]:
    return {
        "expert_count": field(c, "num_experts", "num_local_experts"),
        "expert_used_count": c.num_experts_per_tok,
        "expert_feed_forward_length": c.moe_intermediate_size,
    }


def _split_experts(tensors: Tensors, c: SimpleNamespace) -> Tensors:
    """Stacked gates, up- and down-projections, each [experts, out, in]."""
    left = Tensors()
    for name, tensor in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            for part, rows in zip(("gate", "up"), tensor.chunk(2, dim=1), strict=True):
                left[f"{name.replace('gate_up', part)}.weight"] = rows
        else:
            left[f"{name}.weight" if name.endswith("experts.down_proj") else name] = tensor
    return left


def _deep(c: SimpleNamespace) -> dict[str, Any]:
    vision = c.vision_config
    deep = getattr(vision, "deepstack_visual_indexes", [])
    return {"is_deepstack_layers": [layer in deep for layer in range(vision.depth)]}


def _llava(c: SimpleNamespace) -> dict[str, Any]:
    """As of a tower without its last layers; `projection_dim` is that of CLIP's vectors."""
    fields = {"block_count": _deepest(c), "projection_dim": 24}
    if isinstance(c.vision_feature_layer, list):
        count = c.vision_config.num_hidden_layers + 1
        fields["feature_layer"] = [layer % count for layer in c.vision_feature_layer]
    if hasattr(c, "image_grid_pinpoints"):
        fields["image_grid_pinpoints"] = [side for pair in c.image_grid_pinpoints for side in pair]
    return fields


def _deepest(c: SimpleNamespace) -> int:
    """The last layer whose states are read, counted from one."""
    given, count = c.vision_feature_layer, c.vision_config.num_hidden_layers + 1
    return max(layer % count for layer in (given if isinstance(given, list) else [given]))


_LLAVA = Pair("mlp", "llama", _llava, steps=(permuted,))
_SMOL = Pair(
    "idefics3",
    "llama",
    lambda c: {"projector.scale_factor": c.scale_factor},
    steps=(permuted,),
)
PAIRS = {
    "gemma3": Pair(
        "gemma3",
        "gemma3",
        lambda c: {"projector.scale_factor": 30 // 5 // int(c.mm_tokens_per_image**0.5)},
        _window,
        (norms_plus_one,),
    ),
    "llava-clip": _LLAVA,
    "llava-next": _LLAVA,
    "llava-siglip": _LLAVA,
    "gemma4-both-ways": Pair("gemma4v", "gemma4", lambda c: {}, _gemma4),
    "idefics3": _SMOL,
    "smolvlm": _SMOL,
    "qwen2-vl": Pair("qwen2vl_merger", "qwen2vl", lambda c: {}, _sections),
    "qwen2.5-vl": Pair(
        "qwen2.5vl_merger",
        "qwen2vl",
        lambda c: {
            "n_wa_pattern": c.vision_config.fullatt_block_indexes[0] + 1,
            "window_size": c.vision_config.window_size,
        },
        _sections,
    ),
    "qwen3-vl": Pair("qwen3vl_merger", "qwen3vl", _deep, _sections),
    "qwen3-vl-moe": Pair(
        "qwen3vl_merger",
        "qwen3vlmoe",
        _deep,
        lambda c: _sections(c) | _experts(c),
        (_split_experts,),
    ),
    "qwen3.5": Pair("qwen3vl_merger", "qwen35", _deep, _delta, (tiled_deltas, delta_nets)),
    "qwen3.5-moe": Pair("qwen3vl_merger", "qwen35moe", _deep, _delta_moe),
    "internvl": Pair(
        "internvl",
        "qwen2",
        lambda c: {"projector.scale_factor": int(1 / c.downsample_ratio), "preproc_max_tiles": 3},
    ),
    "lfm2-vl": Pair(
        "lfm2",
        "lfm2",
        lambda c: {"projector.scale_factor": c.downsample_factor},
        lambda c: {
            "attention.head_count_kv": [
                c.num_key_value_heads if kind == "full_attention" else 0 for kind in c.layer_types
            ],
            "shortconv.l_cache": c.conv_L_cache,
            "attention.layer_norm_rms_epsilon": c.norm_eps,
        },
    ),
    "lighton-ocr": Pair(
        "lightonocr", "qwen3", lambda c: {"spatial_merge_size": c.spatial_merge_size}
    ),
    "pixtral": Pair("pixtral", "llama", lambda c: {}, steps=(permuted,)),
    "mistral3": Pair(
        "pixtral",
        "llama",
        lambda c: {"spatial_merge_size": c.spatial_merge_size},
        steps=(permuted,),
    ),
}
"""By the name of the tower in `tiny_towers.TOWERS`."""
_BOUNDS = (".input_max", ".input_min", ".output_max", ".output_min")
_TEXT = re.compile(r"^(model\.)?((language_model|text_model)\.)?(model\.)?")
_ENCODER = re.compile(
    r"(^|\.)((visual|vision_\w+|embed_vision|multi_modal_projector|connector)\.|image_newline$)"
)
_LLAVA_NAMES = (
    (r"^(model\.)?image_newline$", "model.image_newline"),
    (r"^(model\.)?multi_modal_projector\.linear_1", "mm.0"),
    (r"^(model\.)?multi_modal_projector\.linear_2", "mm.2"),
    (r"^(model\.)?vision_tower\.(vision_model\.)?", "v."),
    *((r"encoder\.layers", "blk"), (r"embeddings\.", ""), (r"_proj\b", "")),
    *((r"self_attn\.", "attn_"), (r"layer_norm", "ln"), (r"pre_layrnorm", "pre_ln")),
    *((r"mlp\.fc1", "ffn_down"), (r"mlp\.fc2", "ffn_up"), (r"embedding\b", "embd")),
)
"""Names of llava_surgery_v2.py and convert_image_encoder_to_gguf.py."""


def save_pair(
    folder: Path, out: Path, name: str, tokens: dict[str, Any], kinds: dict[str, Type] | None = None
) -> Path:
    """Write the checkpoint of a folder, in whose tower are `kinds` of blocks; returns the language
    model's file. `tokens` are metadata of the vocabulary."""
    pair, config = PAIRS[name], _config(folder)
    stored = load_file(folder / "model.safetensors")
    encoder = {n: t for n, t in stored.items() if _ENCODER.search(n)}
    texts = {_text_name(n): t.contiguous() for n, t in stored.items() if n not in encoder}
    out.mkdir(exist_ok=True)
    text_folder = out / "text"
    text_folder.mkdir(exist_ok=True)
    fields = json.loads((folder / "config.json").read_text())["text_config"]
    (text_folder / "config.json").write_text(json.dumps(fields))
    if "model.embed_tokens.weight" not in texts:  # Shared with the head, under whose name it is.
        texts["model.embed_tokens.weight"] = texts.pop("lm_head.weight")
    save_file(texts, text_folder / "model.safetensors")
    metadata = pair.metadata(_config(text_folder)) | tokens
    convert(text_folder, pair.text, metadata, steps=pair.steps or None).rename(out / "model.gguf")
    _write_encoder(
        out / "mmproj-model-f16.gguf", pair, config, encoder, kinds or {}, _images(folder)
    )
    return out / "model.gguf"


def _text_name(name: str) -> str:
    return "lm_head.weight" if "lm_head" in name else _TEXT.sub("model.", name)


def _config(folder: Path) -> SimpleNamespace:
    text = (folder / "config.json").read_text()
    found: SimpleNamespace = json.loads(text, object_hook=lambda d: SimpleNamespace(**d))
    return found


def _write_encoder(
    path: Path,
    pair: Pair,
    c: SimpleNamespace,
    tensors: Tensors,
    kinds: dict[str, Type],
    images: dict[str, Any],
) -> None:
    file = gguf.GGUFWriter(path, "clip")
    file.add_type(gguf.GGUFType.MMPROJ)
    file.add_string("clip.projector_type", pair.kind)
    file.add_bool("clip.has_vision_encoder", val=True)
    for flag in ("gelu", "silu"):
        if getattr(c.vision_config, "hidden_act", "") == flag:
            file.add_bool(f"clip.use_{flag}", val=True)
    for key, value in (_sizes(c) | images | pair.vision(c)).items():
        file.add_key_value(f"clip.vision.{key}", value, *_types(value))
    for stored, tensor in _renamed(pair.kind, c, tensors):
        write(file, stored, tensor.float(), kinds, floats=False)
    for part in ("header", "kv_data", "tensors"):
        getattr(file, f"write_{part}_to_file")()
    file.close()


def _images(folder: Path) -> dict[str, Any]:
    """Settings of its image processor; colours are CLIP's unless the file says otherwise."""
    file = folder / "preprocessor_config.json"
    given = json.loads(file.read_text()) if file.is_file() else {}
    areas = {f"image_{n}": given[n] for n in ("min_pixels", "max_pixels") if n in given}
    return areas | {
        "image_mean": given.get("image_mean", [0.48145466, 0.4578275, 0.40821073]),
        "image_std": given.get("image_std", [0.26862954, 0.26130258, 0.27577711]),
    }


def _types(value: Any) -> tuple[Any, ...]:
    kinds = {bool: "BOOL", int: "UINT32", float: "FLOAT32"}
    if isinstance(value, list):
        inner = getattr(gguf.GGUFValueType, kinds[type(value[0])])
        return gguf.GGUFValueType.ARRAY, inner
    return (getattr(gguf.GGUFValueType, kinds[type(value)]),)


def _sizes(c: SimpleNamespace) -> dict[str, Any]:
    v = vars(c.vision_config)
    wide = "embed_dim" in v
    side = int(v.get("num_position_embeddings", 100) ** 0.5) * _side(v["patch_size"])
    return {
        "projection_dim": c.text_config.hidden_size,
        "image_size": _side(v.get("image_size", side)),
        "patch_size": _side(v["patch_size"]),
        "embedding_length": v["embed_dim" if wide else "hidden_size"],
        "feed_forward_length": v["hidden_size" if wide else "intermediate_size"],
        "block_count": v.get("depth", v.get("num_hidden_layers")),
        "attention.head_count": v.get("num_heads", v.get("num_attention_heads")),
        "attention.layer_norm_epsilon": float(v.get("layer_norm_eps", 1e-6)),
    }


def _side(size: Any) -> int:
    return int(size[0] if isinstance(size, list) else size)


def _renamed(kind: str, c: SimpleNamespace, tensors: Tensors) -> Iterator[tuple[str, Tensor]]:
    heads = _sizes(c)["attention.head_count"]
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 16)
    for name, tensor in _prepared(kind, c, tensors):
        if kind in ("pixtral", "lightonocr") and re.search(r"\.[qk]_proj\.", name):
            tensor = interleave(tensor, heads)
        stored = table.get_name(name, try_suffixes=(".weight", ".bias", *_BOUNDS))
        yield name if kind == "mlp" else stored or name, tensor


def _prepared(kind: str, c: SimpleNamespace, tensors: Tensors) -> Iterator[tuple[str, Tensor]]:
    """What the converter does to tensors before it names them."""
    for name, tensor in tensors.items():
        if kind not in ("idefics3", "gemma4v", "internvl"):
            name = name.removeprefix("model.")
        if kind == "gemma3":
            name = name.replace("_weight", ".weight")
            name = re.sub(r"^vision_tower\.(?!vision_model)", "vision_tower.vision_model.", name)
            tensor = tensor + 1 if "soft_emb_norm" in name else tensor
        if kind == "lfm2":
            name = re.sub(r"^vision_tower\.(?!vision_model)", "vision_tower.vision_model.", name)
        if kind == "lightonocr":
            name = name.replace("vision_encoder.", "vision_tower.")
            name = name.replace("vision_projection.", "multi_modal_projector.")
        if kind == "mlp":
            if not _left_out(name, c):
                yield _llava_name(name), tensor
        elif kind == "lfm2" and name.endswith("patch_embedding.weight"):
            yield name, _as_convolution(tensor)
        elif kind == "gemma4v":
            yield _gemma4_name(name), _unflattened(name, tensor)
        elif kind == "internvl":
            yield _internvl_name(name), tensor
        elif name.endswith("patch_embed.proj.weight"):
            yield "v.patch_embd.weight", tensor[:, :, 0]
            yield "v.patch_embd.weight.1", tensor[:, :, 1]
        elif ".qkv." in name and kind.startswith("qwen2"):
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                yield name.replace("qkv", part), rows
        else:
            yield _merger(name, kind, c), tensor


def _left_out(name: str, c: SimpleNamespace) -> bool:
    """Whether a LLaVA's file is without a tensor of its tower."""
    layer = re.search(r"vision_tower\..*layers\.(\d+)\.", name)
    return "post_layernorm" in name or (layer is not None and int(layer[1]) >= _deepest(c))


def _llava_name(name: str) -> str:
    for pattern, stored in _LLAVA_NAMES:
        name = re.sub(pattern, stored, name)
    return name


def _internvl_name(name: str) -> str:
    """As those of OpenGVLab, and with a suffix for each."""
    for part, number in (("layer_norm", 0), ("linear_1", 1), ("linear_2", 3)):
        name = re.sub(rf"^(model\.)?multi_modal_projector\.{part}\.", f"mlp1.{number}.", name)
    name = re.sub(r"^(?=vision_tower)", "model.", name)
    return f"{name}.weight" if re.search(r"lambda_\d$|position_embeddings$", name) else name


def _gemma4_name(name: str) -> str:
    name = name.replace("model.vision_tower.encoder.", "vision_model.model.")
    name = name.replace(".linear.weight", ".weight")
    return f"{name}.weight" if name.endswith("position_embedding_table") else name


def _unflattened(name: str, tensor: Tensor) -> Tensor:
    """Bounds with an axis, and the projection of patches as a convolution."""
    if not name.endswith("patch_embedder.input_proj.weight"):
        return tensor.reshape(1) if tensor.ndim == 0 else tensor
    return _as_convolution(tensor)


def _as_convolution(tensor: Tensor) -> Tensor:
    side = int((tensor.shape[1] // 3) ** 0.5)
    return tensor.unflatten(1, (side, side, 3)).permute(0, 3, 1, 2)


def _merger(name: str, kind: str, c: SimpleNamespace) -> str:
    """Names of Qwen3-VL's mergers, which the converter writes itself."""
    if kind != "qwen3vl_merger":
        return name
    if found := re.match(r"visual\.deepstack_merger_list\.(\d+)\.(?:linear_)?(\w+)\.(\w+)", name):
        layer = c.vision_config.deepstack_visual_indexes[int(found[1])]
        return f"v.deepstack.{layer}.{found[2]}.{found[3]}"
    for part, stored in (("linear_fc1", "mm.0"), ("linear_fc2", "mm.2"), ("norm", "v.post_ln")):
        if name.startswith(f"visual.merger.{part}."):
            return f"{stored}.{name.rpartition('.')[2]}"
    return name


def plain_tokens(count: int, named: dict[str, int]) -> dict[str, Any]:
    """Metadata of a vocabulary without merges; `named` are texts of ids."""
    tokens = [f"t{number}" for number in range(count)]
    for text, number in named.items():
        tokens[number] = text
    return {"tokenizer.ggml.tokens": tokens}


def written_tokens(folder: Path, renamed: dict[str, str]) -> dict[str, Any]:
    """Metadata of a folder's tokenizer and chat template, with other texts for some tokens."""
    spec = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    vocabulary, added = spec["model"]["vocab"], spec["added_tokens"]
    found = {number: (token, 1) for token, number in vocabulary.items()}
    found |= {token["id"]: (token["content"], 3) for token in added}
    template = settings["chat_template"]
    for old, new in renamed.items():
        template = template.replace(old, new)
    merges = [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [
            renamed.get(found[n][0], found[n][0]) if n in found else f"[PAD{n}]"
            for n in range(max(found) + 1)
        ],
        "tokenizer.ggml.token_type": [
            found[n][1] if n in found else 5 for n in range(max(found) + 1)
        ],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.chat_template": template,
    }
