"""Encoders of images beside GGUF files: their settings under the names of Hugging Face's files.

llama.cpp keeps the image encoder of a model in a GGUF file of its own, whose name has "mmproj" in
it. A row of `PROJECTORS` says for a `clip.projector_type` which architecture the two files are
together, and what its config.json and preprocessor_config.json would say. Constants that files lack
are those of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from baton.checkpoint.gguf_header import Head, read_head, read_metadata
from baton.checkpoint.json_file import readable_fields
from baton.errors import ModelError

Fields = dict[str, Any]
_PATTERN = "*mmproj*.gguf"
_KINDS = ("clip.projector_type", "clip.vision.projector_type")
_APART = "Serve the GGUF file from a folder without it for texts alone"


class Encoder:
    """Metadata and tensor table of an encoder's file."""

    def __init__(self, head: Head) -> None:
        self._metadata = head.metadata
        self._shapes = {tensor.name: tensor.shape for tensor in head.tensors}

    @property
    def kind(self) -> str:
        """The type of its projector; empty if the file holds no encoder of images. The first files
        of LLaVA do not name it."""
        named = (str(self._metadata[key]) for key in _KINDS if self._metadata.get(key))
        return next(named, "mlp" if self.flag("has_llava_projector") else "")

    def of(self, key: str, default: Any = None) -> Any:
        """The field `clip.vision.<key>`. Raises `ModelError` if it is missing without default."""
        value = self._metadata.get(f"clip.vision.{key}", default)
        if value is None:
            raise ModelError(f"the file lacks clip.vision.{key}")
        return value

    def flag(self, key: str) -> bool:
        """The field `clip.<key>`."""
        return bool(self._metadata.get(f"clip.{key}", False))

    def has(self, tensor: str) -> bool:
        """Whether the file holds a tensor."""
        return tensor in self._shapes

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Shape of a tensor. Raises `ModelError` without it."""
        if tensor not in self._shapes:
            raise ModelError(f"the file lacks the tensor {tensor}")
        return self._shapes[tensor]

    def rows(self, tensor: str) -> int:
        """Outermost dimension of a tensor. Raises `ModelError` without it."""
        return self.shape(tensor)[0]

    @property
    def swapped(self) -> bool:
        """Whether up- and down-projections have one another's names, as in older files."""
        return self.rows("v.blk.0.ffn_down.weight") != int(self.of("embedding_length"))

    @property
    def feed_forward(self) -> int:
        """Width of the feed-forward layers; the metadata of some families has another number."""
        return self.rows(f"v.blk.0.ffn_{'down' if self.swapped else 'up'}.weight")


class ProjectorKind(NamedTuple):
    """One `clip.projector_type`."""

    architecture: Callable[[Encoder, str], str]
    """Hugging Face name of the whole model, given the architecture of its language model."""
    config: Callable[[Encoder], Fields]
    """Fields of config.json beside those of the language model."""
    images: Callable[[Encoder], Fields]
    """Fields of preprocessor_config.json beside colours."""
    texts: Mapping[str, str]
    """Architectures of language models that it goes with, and their Hugging Face model types."""
    tokens: tuple[str, ...]
    """Texts of the token whose embedding is replaced; the first one of the vocabulary is it."""
    marks: Mapping[str, str] = MappingProxyType({})
    """Fields of config.json with other tokens of images, and their texts."""
    width: Callable[[Encoder], int] = lambda encoder: int(encoder.of("projection_dim"))
    """Size of an embedding."""


@dataclass(frozen=True)
class Projector:
    """The encoder beside a GGUF file, under Hugging Face names."""

    path: Path
    kind: str
    """`clip.projector_type`."""
    architecture: str
    text_type: str
    """Hugging Face model type of the language model."""
    width: int
    """Size of an embedding."""
    config: Fields = field(default_factory=dict)
    """Fields of config.json; `text_config` has only what the language model's file lacks."""
    image_processor: Fields = field(default_factory=dict)
    """preprocessor_config.json."""


def projector_file(path: Path) -> Path | None:
    """The file with the encoder of the model in a GGUF file, beside it; None without one. Raises
    `ModelError` with half a sentence if there are several."""
    if path.suffix != ".gguf" or not path.is_file():
        return None
    files = sorted(set(path.parent.glob(_PATTERN)) - {path})
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ModelError(f"several encoders are beside it ({names}): keep one")
    return files[0] if files else None


def read_projector(path: Path) -> Projector | None:
    """The encoder beside a GGUF file; None without one.

    Raises:
        ModelError: half a sentence that says why it cannot be used.
    """
    file = projector_file(path)
    if file is None:
        return None
    with readable_fields(f"{path.name} or {file.name}"):
        return _read(path, file)


def _read(path: Path, file: Path) -> Projector:
    encoder = Encoder(read_head(file))
    if encoder.kind not in PROJECTORS:
        named = encoder.kind or "without images"
        raise ModelError(
            f"{file.name} is of the kind {named}, known are {', '.join(PROJECTORS)}. {_APART}"
        )
    row, text = PROJECTORS[encoder.kind], read_metadata(path)
    kind, width = str(text.get("general.architecture")), row.width(encoder)
    if kind not in row.texts or width != text.get(f"{kind}.embedding_length"):
        raise ModelError(f"{file.name} is the encoder of another model than {path.name}. {_APART}")
    config = row.config(encoder) | _tokens(row, text, file)
    colors = {f"image_{part}": encoder.of(f"image_{part}") for part in ("mean", "std")}
    return Projector(
        file,
        encoder.kind,
        row.architecture(encoder, kind),
        row.texts[kind],
        width,
        config,
        row.images(encoder) | colors,
    )


def _tokens(row: ProjectorKind, text: Mapping[str, Any], file: Path) -> Fields:
    """The token whose embedding is replaced, and those around it."""
    ids = {token: number for number, token in enumerate(text.get("tokenizer.ggml.tokens") or ())}
    found = next((ids[token] for token in row.tokens if token in ids), None)
    if found is None:
        raise ModelError(f"its vocabulary has no {row.tokens[0]}, which {file.name} wants")
    marks = {name: ids[token] for name, token in row.marks.items() if token in ids}
    return {"image_token_id": found, **marks}


def _stack(encoder: Encoder, **names: str) -> Fields:
    """Sizes of the encoder; `names` replace those of most configs."""
    sizes = {
        "hidden_size": encoder.of("embedding_length"),
        "intermediate_size": encoder.feed_forward,
        "num_hidden_layers": encoder.of("block_count"),
        "num_attention_heads": encoder.of("attention.head_count"),
    }
    fields = {names.get(name, name): value for name, value in sizes.items()}
    return fields | {"image_size": encoder.of("image_size"), "patch_size": encoder.of("patch_size")}


def _siglip(encoder: Encoder, model_type: str) -> Fields:
    return _stack(encoder) | {
        "model_type": model_type,
        "layer_norm_eps": encoder.of("attention.layer_norm_epsilon"),
        "hidden_act": "gelu_pytorch_tanh",
    }


def _gemma3(encoder: Encoder) -> Fields:
    side = encoder.of("image_size") // encoder.of("patch_size")
    tokens = (side // encoder.of("projector.scale_factor", 4)) ** 2
    vision = _siglip(encoder, "siglip_vision_model")
    return {"vision_config": vision, "mm_tokens_per_image": tokens}


def _gemma3_images(encoder: Encoder) -> Fields:
    side = encoder.of("image_size")
    return {
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": side, "width": side},
        "resample": 2,
    }


def _gemma4(encoder: Encoder) -> Fields:
    heads = encoder.of("attention.head_count")
    head_dim = encoder.rows("v.blk.0.attn_q.weight") // heads
    vision = _stack(encoder) | {
        "head_dim": head_dim,
        "num_key_value_heads": encoder.rows("v.blk.0.attn_k.weight") // head_dim,
        "rms_norm_eps": encoder.of("attention.layer_norm_epsilon"),
        "pooling_kernel_size": encoder.of("projector.scale_factor", 3),
        "position_embedding_size": encoder.shape("v.position_embd.weight")[1],
        "use_clipped_linears": encoder.has("v.blk.0.attn_q.input_max"),
        "standardize": encoder.has("v.std_bias"),
    }
    both = None if encoder.of("projection_dim") in _SMALL_GEMMA4 else "vision"
    return {"vision_config": vision, "text_config": {"use_bidirectional_attention": both}}


def _gemma4_images(encoder: Encoder) -> Fields:
    return {
        "image_processor_type": "Gemma4ImageProcessor",
        "patch_size": encoder.of("patch_size"),
        "pooling_kernel_size": encoder.of("projector.scale_factor", 3),
    }


def _idefics3(encoder: Encoder) -> Fields:
    vision = _siglip(encoder, "smolvlm_vision")
    return {"vision_config": vision, "scale_factor": encoder.of("projector.scale_factor", 2)}


def _idefics3_images(encoder: Encoder) -> Fields:
    tile = encoder.of("image_size")
    return {
        "image_processor_type": "SmolVLMImageProcessor",
        "size": {"longest_edge": encoder.of("preproc_image_size", 4 * tile)},
        "max_image_size": {"longest_edge": tile},
        "do_image_splitting": True,
        "resample": 1,
    }


def _internvl(encoder: Encoder) -> Fields:
    vision = _stack(encoder) | {
        "model_type": "internvl_vision",
        "hidden_act": "silu" if encoder.flag("use_silu") else "gelu",
        "layer_norm_eps": encoder.of("attention.layer_norm_epsilon"),
        "norm_type": "layer_norm" if encoder.has("v.blk.0.ln1.bias") else "rms_norm",
        "attention_bias": encoder.has("v.blk.0.attn_q.bias"),
        "use_qk_norm": encoder.has("v.blk.0.attn_q_norm.weight"),
    }
    merged = encoder.of("projector.scale_factor", 2)
    tokens = (vision["image_size"] // vision["patch_size"] // merged) ** 2
    return {
        "vision_config": vision,
        "downsample_ratio": 1 / merged,
        "image_seq_length": tokens,
    }


def _internvl_images(encoder: Encoder) -> Fields:
    side = encoder.of("image_size")
    return {
        "image_processor_type": "GotOcr2ImageProcessor",
        "size": {"height": side, "width": side},
        "min_patches": encoder.of("preproc_min_tiles", 1),
        "max_patches": encoder.of("preproc_max_tiles", 12),
        "resample": 3,
    }


def _pixtral(encoder: Encoder) -> Fields:
    vision = _stack(encoder) | {
        "model_type": "pixtral",
        "hidden_act": "silu" if encoder.flag("use_silu") else "gelu",
        "rope_theta": 10_000.0,
        "head_dim": encoder.of("embedding_length") // encoder.of("attention.head_count"),
    }
    fields = {"vision_config": vision, "vision_feature_layer": -1}
    if _merges(encoder):
        return fields | {"spatial_merge_size": encoder.of("spatial_merge_size", 2)}
    return fields | {"vision_feature_select_strategy": "full"}


def _merges(encoder: Encoder) -> bool:
    return encoder.has("mm.patch_merger.weight")


def _lfm2(encoder: Encoder) -> Fields:
    vision = _siglip(encoder, "siglip2_vision_model")
    return {
        "vision_config": vision | {"num_patches": encoder.rows("v.position_embd.weight")},
        "downsample_factor": encoder.of("projector.scale_factor", 2),
        "encoder_patch_size": encoder.of("patch_size"),
        "projector_hidden_size": encoder.rows("mm.1.weight"),
        "projector_bias": encoder.has("mm.1.bias"),
        "projector_use_layernorm": encoder.has("mm.input_norm.weight"),
    }


def _lfm2_images(encoder: Encoder) -> Fields:
    return {
        "image_processor_type": "Lfm2VlImageProcessor",
        "encoder_patch_size": encoder.of("patch_size"),
        "downsample_factor": encoder.of("projector.scale_factor", 2),
    }


def _llava(encoder: Encoder) -> Fields:
    if encoder.has("mm.3.weight"):
        raise ModelError(f"its projector has norms, as Yi-VL's, which Baton cannot run. {_APART}")
    clip = encoder.has("v.class_embd")
    vision = _siglip(encoder, f"{'clip' if clip else 'siglip'}_vision_model")
    if clip:
        vision["hidden_act"] = "gelu" if encoder.flag("use_gelu") else "quick_gelu"
    offered = {"image_grid_pinpoints": _offered(encoder)} if _offered(encoder) else {}
    return offered | {
        "vision_config": vision,
        # Layers above the last one that is read are not in the file.
        "vision_feature_layer": encoder.of("feature_layer", vision["num_hidden_layers"]),
        "vision_feature_select_strategy": "default" if clip else "full",
        "multimodal_projector_bias": encoder.has("mm.0.bias"),
    }


def _offered(encoder: Encoder) -> list[list[int]]:
    """Resolutions of LLaVA-NeXT, height and width; none for LLaVA 1.5."""
    flat = encoder.of("image_grid_pinpoints", [])
    return [list(pair) for pair in zip(flat[::2], flat[1::2], strict=True)]


def _llava_images(encoder: Encoder) -> Fields:
    side, offered = encoder.of("image_size"), _offered(encoder)
    square = {"height": side, "width": side}
    if not offered and not encoder.has("v.class_embd"):
        return {"image_processor_type": "SiglipImageProcessor", "size": square, "resample": 3}
    fields = {"size": {"shortest_edge": side}, "crop_size": square, "resample": 3}
    if not offered:
        return fields | {"image_processor_type": "CLIPImageProcessor"}
    next_ = {"image_processor_type": "LlavaNextImageProcessor", "image_grid_pinpoints": offered}
    return fields | next_


def _llava_name(encoder: Encoder, text: str) -> str:
    return f"Llava{'Next' if _offered(encoder) else ''}ForConditionalGeneration"


def _mistral(encoder: Encoder, text: str) -> str:
    return f"{'Mistral3' if _merges(encoder) else 'Pixtral'}ForConditionalGeneration"


def _pixtral_images(encoder: Encoder) -> Fields:
    merge = encoder.of("spatial_merge_size", 2) if _merges(encoder) else 1
    return {
        "image_processor_type": "PixtralImageProcessor",
        "size": {"longest_edge": encoder.of("image_size")},
        "patch_size": encoder.of("patch_size") * merge,
        "resample": 3,
    }


def _qwen(encoder: Encoder, **names: str) -> Fields:
    counts = {"num_hidden_layers": "depth", "num_attention_heads": "num_heads"}
    return _stack(encoder, **counts, **names) | {
        "spatial_merge_size": encoder.of("spatial_merge_size", 2),
        "temporal_patch_size": 2,
    }


def _qwen2_vl(encoder: Encoder) -> Fields:
    vision = _qwen(encoder, hidden_size="embed_dim")
    ratio = vision.pop("intermediate_size") / vision["embed_dim"]
    return {"vision_config": vision | {"mlp_ratio": ratio, "hidden_act": "quick_gelu"}}


def _qwen2_5_vl(encoder: Encoder) -> Fields:
    every = encoder.of("n_wa_pattern")
    vision = _qwen(encoder) | {
        "hidden_act": "silu",
        "window_size": encoder.of("window_size", 112),
        "fullatt_block_indexes": list(range(every - 1, encoder.of("block_count"), every)),
        "tokens_per_second": 2,
    }
    return {"vision_config": vision}


def _qwen3_vl(encoder: Encoder) -> Fields:
    deep = encoder.of("is_deepstack_layers")
    vision = _qwen(encoder) | {
        "hidden_act": "gelu_pytorch_tanh",
        "num_position_embeddings": encoder.rows("v.position_embd.weight"),
        "deepstack_visual_indexes": [number for number, given in enumerate(deep) if given],
    }
    return {"vision_config": vision}


def _areas(least: int, most: int) -> Callable[[Encoder], Fields]:
    """Limits of an image's area in pixels, as published."""

    def images(encoder: Encoder) -> Fields:
        return {
            "image_processor_type": "Qwen2VLImageProcessor",
            "min_pixels": encoder.of("image_min_pixels", least),
            "max_pixels": encoder.of("image_max_pixels", most),
            "patch_size": encoder.of("patch_size"),
            "merge_size": encoder.of("spatial_merge_size", 2),
            "temporal_patch_size": 2,
            "resample": 3,
        }

    return images


def _named(architecture: str) -> Callable[[Encoder, str], str]:
    return lambda encoder, text: f"{architecture}ForConditionalGeneration"


def _qwen3(encoder: Encoder, text: str) -> str:
    return f"{_QWEN3[text]}ForConditionalGeneration"


_SMALL_GEMMA4 = (1536, 2560)
"""Hidden sizes of E2B and E4B, which see the tokens of an image in one direction only."""
_LLAMAS = {"llama": "llama", "mistral3": "mistral", "qwen3": "qwen3"}
_LLAVAS = {"llama": "llama", "granite": "granite", "phi3": "phi3", "qwen2": "qwen2"}
_QWEN3 = {
    "qwen3vl": "Qwen3VL",
    "qwen3vlmoe": "Qwen3VLMoe",
    "qwen35": "Qwen3_5",
    "qwen35moe": "Qwen3_5Moe",
}
_INTERNVL = {
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "llama": "llama",
}
_PAD = ("<|image_pad|>",)
_QWEN2_AREAS = _areas(56 * 56, 28 * 28 * 16_384)
PROJECTORS = {
    "gemma3": ProjectorKind(
        _named("Gemma3"),
        _gemma3,
        _gemma3_images,
        {"gemma3": "gemma3_text"},
        # Converters cut the vocabulary before its image token; nothing writes the last unused one.
        ("<image_soft_token>", *(f"<unused{number}>" for number in range(6241, 0, -1))),
    ),
    "gemma4v": ProjectorKind(
        _named("Gemma4"),
        _gemma4,
        _gemma4_images,
        {"gemma4": "gemma4_text"},
        ("<|image|>",),
        {"boi_token_id": "<|image>", "eoi_token_id": "<image|>"},
    ),
    "idefics3": ProjectorKind(
        _named("SmolVLM"), _idefics3, _idefics3_images, {"llama": "llama"}, ("<image>",)
    ),
    "internvl": ProjectorKind(
        _named("InternVL"), _internvl, _internvl_images, _INTERNVL, ("<IMG_CONTEXT>",)
    ),
    "lfm2": ProjectorKind(_named("Lfm2Vl"), _lfm2, _lfm2_images, {"lfm2": "lfm2"}, ("<image>",)),
    "lightonocr": ProjectorKind(
        _named("LightOnOcr"), _pixtral, _pixtral_images, {"qwen3": "qwen3"}, _PAD
    ),
    "mlp": ProjectorKind(
        _llava_name,
        _llava,
        _llava_images,
        _LLAVAS,
        # Language models that were made for texts have no image token. Nothing writes reserved
        # ones, and no text is encoded as the unknown one where characters may be bytes.
        (
            *("<image>", "<|image_pad|>", "<|placeholder6|>"),
            *(f"<|reserved_special_token_{number}|>" for number in range(250, -1, -1)),
            "<unk>",
        ),
        # `projection_dim` is that of CLIP.
        width=lambda encoder: encoder.rows("mm.2.weight"),
    ),
    "pixtral": ProjectorKind(_mistral, _pixtral, _pixtral_images, _LLAMAS, ("[IMG]",)),
    "qwen2vl_merger": ProjectorKind(
        _named("Qwen2VL"), _qwen2_vl, _QWEN2_AREAS, {"qwen2vl": "qwen2_vl_text"}, _PAD
    ),
    "qwen2.5vl_merger": ProjectorKind(
        _named("Qwen2_5_VL"), _qwen2_5_vl, _QWEN2_AREAS, {"qwen2vl": "qwen2_5_vl_text"}, _PAD
    ),
    "qwen3vl_merger": ProjectorKind(
        _qwen3,
        _qwen3_vl,
        _areas(256 * 256, 4096 * 4096),
        dict.fromkeys(_QWEN3, "qwen3_vl_text"),
        _PAD,
    ),
}
"""By `clip.projector_type`."""


__all__ = ["PROJECTORS", "Encoder", "Projector", "projector_file", "read_projector"]
