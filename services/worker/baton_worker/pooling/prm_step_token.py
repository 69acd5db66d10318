"""The step token of process reward models, which score every step."""

from __future__ import annotations

import json
from pathlib import Path

from baton.errors import ModelError

STEP = "<extra_0>"
"""The step token of Qwen2.5-Math-PRM (arXiv:2501.07301)."""


def read_step_id(folder: Path) -> int:
    """The id of `STEP` in the folder's tokenizer.json. Raises `ModelError` if it has none."""
    path = folder / "tokenizer.json"
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
        ids = {token["content"]: token["id"] for token in spec["added_tokens"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} cannot be read, and the token {STEP} is needed.") from error
    if STEP not in ids:
        raise ModelError(f"{path} has no token {STEP}, which ends the steps that are judged.")
    return int(ids[STEP])
