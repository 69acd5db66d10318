"""Writes a Qwen2-VL with random weights for benchmarks, of any size, with all of its files.

    python -m tools.make_random_vlm OUT --width 768 --layers 8 --vision-width 512 --vision-layers 8

The same arguments give the same bits.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from baton_ops.bench.prompts import TEXT
from tools.byte_tokenizer import byte_tokenizer, save_tokenizer
from tools.tiny_vlm_recipes import END, PAD, RECIPES

_HEAD = 64
_PATCH, _MERGE = 14, 2
_VOCABULARY = 1024
_MOST_PIXELS = 1280 * (_PATCH * _MERGE) ** 2


def config_of(width: int, layers: int, vision_width: int, vision_layers: int) -> Any:
    """That of Qwen2-VL-2B with other widths and depths."""
    from transformers import Qwen2VLConfig

    heads = width // _HEAD
    rotation = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 8, 8]}
    return Qwen2VLConfig(
        text_config={
            **{"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers},
            **{"num_attention_heads": heads, "num_key_value_heads": max(1, heads // 6)},
            **{"vocab_size": _VOCABULARY, "max_position_embeddings": 8192},
            **{"rope_parameters": rotation, "bos_token_id": None, "eos_token_id": 0},
        },
        vision_config={
            **{"embed_dim": vision_width, "hidden_size": width, "depth": vision_layers},
            **{"num_heads": vision_width // _HEAD},
        },
        tie_word_embeddings=False,
        image_token_id=RECIPES["qwen2_vl"].tokens.index("<|image_pad|>"),
    )


def save(folder: Path, config: Any, seed: int = 0) -> None:
    """Write a model with random weights in bfloat16, its tokenizer and its image processor."""
    from transformers import Qwen2VLForConditionalGeneration

    recipe = RECIPES["qwen2_vl"]
    tokenizer = byte_tokenizer(recipe.tokens, TEXT.split("."), _VOCABULARY)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: Any = Qwen2VLForConditionalGeneration(config)
    with torch.inference_mode():
        model.lm_head.weight[_silent(tokenizer)] = 0.0
    model.bfloat16().save_pretrained(folder)
    names = {"chat_template": recipe.chat_template, "eos_token": END, "pad_token": PAD}
    save_tokenizer(tokenizer, folder, **names)
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "size": {"shortest_edge": 56 * 56, "longest_edge": _MOST_PIXELS},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=1))


def _silent(tokenizer: Any) -> list[int]:
    """Tokens without a text of their own, which are never the most probable where their logits are
    zero: clients see every token of an answer."""
    shown = (tokenizer.decode([token]) for token in range(_VOCABULARY))
    return [token for token, text in enumerate(shown) if text in ("", "\ufffd")]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="tools.make_random_vlm", description=__doc__)
    parser.add_argument("out", type=Path)
    sizes = {"width": 768, "layers": 8, "vision-width": 512, "vision-layers": 8}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    config = config_of(given.width, given.layers, given.vision_width, given.vision_layers)
    save(given.out, config)


if __name__ == "__main__":
    main()
