"""Writes a Qwen2-VL or a LLaVA with random weights for benchmarks, of any size, with all files.

    python -m tools.make_random_vlm OUT --width 768 --layers 8 --vision-width 512 --vision-layers 8

The same arguments give the same bits.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from baton_ops.bench.prompts import TEXT
from tools.arguments import new_folder, positive_int
from tools.byte_tokenizer import byte_tokenizer, save_tokenizer
from tools.tiny_vlm_recipes import END, PAD, RECIPES, Recipe

_HEAD = 64
_PATCH, _MERGE = 14, 2
_SIDE = 336
"""Image size of LLaVA in pixels a side."""
_VOCABULARY = 1024
_MOST_PIXELS = 1280 * (_PATCH * _MERGE) ** 2


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model. Widths are multiples of 64, the size of a head."""

    width: int = 768
    layers: int = 8
    vision_width: int = 512
    vision_layers: int = 8

    @property
    def text(self) -> dict[str, Any]:
        """Config of the language model; a sixth of its heads are KV heads."""
        heads = self.width // _HEAD
        return {
            "hidden_size": self.width,
            "intermediate_size": 4 * self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": max(1, heads // 6),
            "vocab_size": _VOCABULARY,
            "max_position_embeddings": 8192,
            "bos_token_id": None,
            "eos_token_id": 0,
            "tie_word_embeddings": False,
        }


def _qwen2_vl(sizes: Sizes) -> tuple[dict[str, Any], dict[str, Any]]:
    rotation = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 8, 8]}
    vision = {"embed_dim": sizes.vision_width, "hidden_size": sizes.width}
    vision |= {"depth": sizes.vision_layers, "num_heads": sizes.vision_width // _HEAD}
    config = {"text_config": sizes.text | {"rope_parameters": rotation}, "vision_config": vision}
    return config, {"size": {"shortest_edge": 56 * 56, "longest_edge": _MOST_PIXELS}}


def _llava(sizes: Sizes) -> tuple[dict[str, Any], dict[str, Any]]:
    vision = {"model_type": "siglip_vision_model", "image_size": _SIDE, "patch_size": _PATCH}
    vision |= {"hidden_size": sizes.vision_width, "intermediate_size": 4 * sizes.vision_width}
    vision |= {"num_hidden_layers": sizes.vision_layers, "vision_use_head": False}
    config = {
        "text_config": {"model_type": "llama", **sizes.text},
        "vision_config": vision | {"num_attention_heads": sizes.vision_width // _HEAD},
        "image_seq_length": (_SIDE // _PATCH) ** 2,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    }
    return config, {"size": {"height": _SIDE, "width": _SIDE}}


ARCHITECTURES: dict[str, Callable[[Sizes], tuple[dict[str, Any], dict[str, Any]]]] = {
    "qwen2_vl": _qwen2_vl,
    "llava": _llava,
}
"""Functions that return the config and the settings of the image processor."""


def _model(recipe: Recipe, config: dict[str, Any], seed: int) -> Any:
    import transformers

    token = recipe.tokens.index(recipe.image_token)
    named = {"image_token_index": token, "image_token_id": token, "tie_word_embeddings": False}
    kind = getattr(transformers, f"{recipe.name}Config")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        name = f"{recipe.name}ForConditionalGeneration"
        return getattr(transformers, name)(kind(**config | named))


def save(folder: Path, name: str, sizes: Sizes, seed: int = 0) -> None:
    """Write a model with random weights in bfloat16, its tokenizer and its image processor."""
    recipe, (config, processor) = RECIPES[name], ARCHITECTURES[name](sizes)
    tokenizer = byte_tokenizer(recipe.tokens, TEXT.split("."), _VOCABULARY)
    model = _model(recipe, config, seed)
    with torch.inference_mode():
        model.lm_head.weight[_silent(tokenizer)] = 0.0
    model.bfloat16().save_pretrained(folder)
    if name == "llava":
        _publish(folder / "model.safetensors")
    names = {"chat_template": recipe.chat_template, "eos_token": END, "pad_token": PAD}
    save_tokenizer(tokenizer, folder, **names)
    processor["image_processor_type"] = recipe.processor["image_processor_type"]
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=1))


def _publish(path: Path) -> None:
    """Rename the tensors of a SigLIP tower as in published LLaVA checkpoints, which vLLM loads:
    transformers writes them without the prefix `vision_model`."""
    tower, published = "vision_tower.", "vision_tower.vision_model."
    tensors = {
        name if published in name else name.replace(tower, published): tensor
        for name, tensor in load_file(path).items()
    }
    save_file(tensors, path, {"format": "pt"})


def _silent(tokenizer: Any) -> list[int]:
    """Tokens without text. With zero logits they are never the most probable, and clients see every
    token of an answer."""
    texts = (tokenizer.decode([token]) for token in range(_VOCABULARY))
    return [token for token, text in enumerate(texts) if text in ("", "\ufffd")]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="tools.make_random_vlm", description=__doc__)
    parser.add_argument("out", type=new_folder)
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="qwen2_vl")
    for name, value in vars(Sizes()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=positive_int, default=value)
    args = vars(parser.parse_args())
    out, name = args.pop("out"), args.pop("architecture")
    try:
        save(out, name, Sizes(**args))
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
