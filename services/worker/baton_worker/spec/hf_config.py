"""The configuration of a checkpoint as a plain attribute object, read without transformers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from baton.checkpoint.added_tokens import added_tokens
from baton.checkpoint.json_file import read_json, readable_fields
from baton.checkpoint.part_folders import PARTS, in_parts, text_folder
from baton.errors import ModelError
from baton_worker.spec.config_limits import check_sizes
from baton_worker.spec.mistral_params import config_of

_BESIDE = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
"""Files in which older tools store their quantisation settings, and the tool."""
_VISION_FIELDS = ("vision_config", "vit_config", "visual_tokenizer_config", "vision_tower_cfg")
"""Fields of configs with an encoder of images."""
_AUDIO_FIELDS = ("num_mel_bins",)
"""Fields of configs that are those of an encoder of sounds."""


def read_config(folder: Path) -> SimpleNamespace:
    """Read `config.json`, or `params.json` of Mistral's format, into nested attribute objects.

    Quantisation settings in a separate file become `quantization_config`; of a model that sees or
    transcribes, the texts and ids of the tokens that its tokenizer added become `added_tokens`, and
    the `alignment_heads` of `generation_config.json` its own.
    Those of a checkpoint `in_parts` are read anew from their folders.

    Raises:
        ModelError: there is no such file, it is not a JSON object, or a size is out of bounds.
    """
    params = folder / "params.json"
    if params.is_file() and not (folder / "config.json").is_file():
        with readable_fields(str(params)):
            config = config_of(read_json(params))
    else:
        config = _read_json(folder / "config.json")
    for part in PARTS if in_parts(folder) else ():
        setattr(config, f"{part}_cfg", _read_json(folder / part / "config.json"))
    check_sizes(config)
    _check_architectures(config)
    for name, method in _BESIDE.items():
        if not hasattr(config, "quantization_config") and (folder / name).is_file():
            settings = vars(_read_json(folder / name))
            config.quantization_config = SimpleNamespace(**{"quant_method": method} | settings)
    if any(hasattr(config, name) for name in (*_VISION_FIELDS, *_AUDIO_FIELDS)):
        config.added_tokens = added_tokens(text_folder(folder))
    generation = folder / "generation_config.json"
    if any(hasattr(config, name) for name in _AUDIO_FIELDS) and generation.is_file():
        heads = getattr(_read_json(generation), "alignment_heads", None)
        config.alignment_heads = heads or getattr(config, "alignment_heads", None)
    return config


def _check_architectures(config: SimpleNamespace) -> None:
    named = getattr(config, "architectures", None) or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise ModelError(
            'config.json: "architectures" must be a list of names, as ["LlamaForCausalLM"].'
        )


def read_eos_token_ids(folder: Path, config: SimpleNamespace) -> tuple[int, ...]:
    """Token ids that end a generation: from `generation_config.json` if it has any, else from the
    config or its text config, else the end-of-turn token of an omni model (Qwen3-Omni).

    Instruction-tuned checkpoints list their end-of-turn token only in the former.
    """
    generation = text_folder(folder) / "generation_config.json"
    ids = getattr(_read_json(generation), "eos_token_id", None) if generation.is_file() else None
    parts = (getattr(config, name, None) for name in ("text_config", "llm_cfg"))
    for part in (config, *parts):
        ids = getattr(part, "eos_token_id", None) if ids is None else ids
    return as_ids(getattr(config, "im_end_token_id", None) if ids is None else ids)


def as_ids(value: object) -> tuple[int, ...]:
    """A token id, a list of them or none at all, as a tuple. Raises `ModelError` for others."""
    values = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(one, int) for one in values):
        raise ModelError(
            f"eos_token_id must be a token id or a list of them, not {str(value)[:40]!r}."
        )
    return tuple(values)


def has_kv_scales(config: SimpleNamespace) -> bool:
    """Whether a checkpoint has calibrated scales for an FP8 KV cache: one for K and one for V per
    layer, as written by llm-compressor."""
    settings = getattr(config, "quantization_config", None)
    scheme = getattr(settings, "kv_cache_scheme", None)
    if scheme is None:
        return False
    kind = [getattr(scheme, name, None) for name in ("type", "num_bits", "strategy", "dynamic")]
    return kind == ["float", 8, "tensor", False] and getattr(scheme, "symmetric", True)


def quantises_only_kv(config: SimpleNamespace) -> bool:
    """Whether only the KV cache is quantised and the weights are not."""
    settings = getattr(config, "quantization_config", None)
    groups = getattr(settings, "config_groups", None)
    return has_kv_scales(config) and not (vars(groups) if groups else None)


def _read_json(path: Path) -> SimpleNamespace:
    try:
        value = json.loads(
            path.read_text(encoding="utf-8"), object_hook=lambda fields: SimpleNamespace(**fields)
        )
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ModelError(
            f"There is no {path.name} in {path.parent}. Point --model at a checkpoint folder "
            "(config.json and safetensors) or at a .gguf file."
        ) from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(value, SimpleNamespace):
        raise ModelError(f"{path} does not hold a JSON object.")
    return value
