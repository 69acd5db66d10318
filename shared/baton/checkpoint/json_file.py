"""JSON files of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from baton.errors import ModelError

LARGEST = 512 * 1024 * 1024
"""Most bytes of a file. A larger one is no JSON file of a checkpoint, and would take its memory."""


def read_json(path: Path, owner: str = "", *, most: int = LARGEST) -> dict[str, Any]:
    """Read a JSON object from a file of at most `most` bytes. Raises `ModelError`, which names the
    owner, if that fails."""
    name = f"{path.name} of {owner}" if owner else path.name
    try:
        if path.stat().st_size > most:
            raise ModelError(f"{name} cannot be read: it has more than {most} bytes.")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{name} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{name} must hold a JSON object.")
    return content


@contextmanager
def readable_fields(files: str) -> Iterator[None]:
    """What code raises inside for a field of another JSON type or value than it can have is a
    `ModelError`, which names the files."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ModelError(
            f"A field of {files} has a type or value that it cannot have ({why})."
        ) from error
