"""Metadata of GGUF files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Fake:
    """Metadata from a dictionary."""

    def __init__(self, **fields: Any) -> None:
        self._fields = {name.replace("__", "."): value for name, value in fields.items()}

    def own(self, key: str, *default: Any) -> Any:
        return self._fields.get(key, *default) if default else self._fields[key]

    def has(self, tensor: str) -> bool:
        return tensor in self._fields.get("tensors", ())

    def rows(self, part: str) -> int:
        return int(self._fields.get(f"rows {part}", 0))

    def rope(self) -> SimpleNamespace:
        return SimpleNamespace(rope_type="default", rope_theta=1e6)
