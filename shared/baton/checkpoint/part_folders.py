"""Checkpoints whose parts are folders of their own, each with a config.json and weights, as VILA
saves them (arXiv:2412.04468)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from baton.checkpoint.json_file import read_json

PARTS = ("llm", "vision_tower", "mm_projector")
"""The language model with its tokenizer, the encoder of images with its processor, what is between
them. The checkpoint's own config.json has their configurations under these names and `_cfg`."""


def in_parts(path: Path) -> bool:
    """Whether a checkpoint is saved so."""
    return all((path / part / "config.json").is_file() for part in PARTS)


def text_folder(path: Path) -> Path:
    """Where the tokenizer and the language model of a checkpoint are."""
    return path / PARTS[0] if in_parts(path) else path


def vision_folder(path: Path) -> Path:
    """Where the encoder of images of a checkpoint and its processor are."""
    return path / PARTS[1] if in_parts(path) else path


def part_configs(path: Path) -> dict[str, dict[str, Any]]:
    """The configurations of the parts by their names in the checkpoint's own; none if it is one
    folder. Raises `ModelError`."""
    if not in_parts(path):
        return {}
    return {f"{part}_cfg": read_json(path / part / "config.json") for part in PARTS}
