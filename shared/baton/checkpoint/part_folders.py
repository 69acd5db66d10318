"""Checkpoints with one folder per part, each with a config.json and weights, as in VILA
(arXiv:2412.04468)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from baton.checkpoint.json_file import read_json

PARTS = ("llm", "vision_tower", "mm_projector")
"""The language model with its tokenizer, the vision encoder with its processor, and the projector.
The checkpoint's own config.json has their configurations under these names and `_cfg`."""


def in_parts(path: Path) -> bool:
    """Whether a checkpoint has this form."""
    return all((path / part / "config.json").is_file() for part in PARTS)


def text_folder(path: Path) -> Path:
    """Folder of a checkpoint's tokenizer and language model."""
    return path / PARTS[0] if in_parts(path) else path


def vision_folder(path: Path) -> Path:
    """Folder of a checkpoint's vision encoder and processor."""
    return path / PARTS[1] if in_parts(path) else path


def part_configs(path: Path) -> dict[str, dict[str, Any]]:
    """The configurations of the parts by their names in the checkpoint's config; empty if it is one
    folder. Raises `ModelError`."""
    if not in_parts(path):
        return {}
    return {f"{part}_cfg": read_json(path / part / "config.json") for part in PARTS}
