"""A language model and the encoder beside it are the model of its Hugging Face checkpoint."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.layers.build_context import BuildContext
from baton_worker.spec import Decoder, VisionTower
from tests.support import tiny_towers
from tests.support.gguf_projectors import PAIRS, plain_tokens, save_pair

CONTEXT = BuildContext(torch.device("cpu"), torch.float32)
IMAGE_TOKENS = {"gemma3": "<unused8>", "pixtral": "[IMG]", "mistral3": "[IMG]"}
IMAGE_TOKENS |= {"idefics3": "<image>", "smolvlm": "<image>", "gemma4-both-ways": "<|image|>"}
IMAGE_TOKENS |= {"llava-clip": "<unk>", "llava-next": "<image>", "llava-siglip": "<unk>"}
IMAGE_TOKENS |= {"internvl": "<IMG_CONTEXT>", "lfm2-vl": "<image>"}


def published(name: str) -> dict[str, Any]:
    """Fields of the configs of published checkpoints, which files do not have."""
    fields = tiny_towers.TOWERS[name][1]
    if name == "qwen2.5-vl":
        return {"vision_config": fields["vision_config"] | {"tokens_per_second": 2}}
    if name == "gemma4-both-ways":
        return {"vision_config": fields["vision_config"] | {"use_clipped_linears": True}}
    if name == "lfm2-vl":
        rules = {"tile_size": 512, "encoder_patch_size": 16, "max_tiles": 10}
        rules |= {"min_image_tokens": 64, "max_image_tokens": 256}
        text = fields["text_config"] | {"block_auto_adjust_ff_dim": False}
        vision = fields["vision_config"] | {"patch_size": 16}
        return rules | {"text_config": text, "vision_config": vision}
    if name in ("pixtral", "mistral3"):
        return {"text_config": fields["text_config"] | {"sliding_window": None}}
    return {}


def values(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    return dict(loaded.model.state_dict())


def rounded(spec: object) -> str:
    """Metadata of GGUF files have the precision of float32."""
    spelled = repr(spec).replace("tiled_output=True", "tiled_output=False")
    return re.sub(r"\d+\.\d+(e-\d+)?", lambda number: f"{float(number[0]):.5g}", spelled)


def seen(name: str, spec: Decoder) -> list[str]:
    """What images pass, but for videos, which files do not take, and the order of value heads.
    Every sixth layer of Gemma 3 has no window, in files of any size; in those of Gemma 4 factors
    say what rotates."""
    assert isinstance(spec.tower, VisionTower)
    layers = () if name.startswith("gemma") else spec.layers
    return [rounded(replace(spec.tower, video=None)), *map(rounded, layers)]


@pytest.mark.row("F03.22", "V21", "V12")
def test_two_files_are_the_checkpoint(tmp_path: Path) -> None:
    for name in PAIRS:
        folder = tmp_path / name
        tiny_towers.tiny_tower(name, folder, **published(name))
        expected = load_model(folder, CONTEXT)
        model = save_pair(
            folder,
            tmp_path / f"{name}-gguf",
            name,
            plain_tokens(320, {IMAGE_TOKENS.get(name, "<|image_pad|>"): 319}),
        )
        found = load_model(model, CONTEXT)
        wanted, got = values(expected), values(found)
        assert wanted.keys() == got.keys(), name
        for key, tensor in wanted.items():
            torch.testing.assert_close(got[key], tensor, msg=f"{name}: {key}")
        assert seen(name, found.spec) == seen(name, expected.spec), name
