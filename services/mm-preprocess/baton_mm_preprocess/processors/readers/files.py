"""Input of readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Files:
    """Image settings of a checkpoint."""

    config: Mapping[str, Any]
    """config.json."""
    image: Mapping[str, Any]
    """The image processor's part of preprocessor_config.json or processor_config.json."""
    processor: Mapping[str, Any] = field(default_factory=dict)
    """processor_config.json, which may be missing."""

    @property
    def vision(self) -> Mapping[str, Any]:
        """The encoder's part of config.json."""
        config: Mapping[str, Any] = self.config.get("vision_config") or {}
        return config

    def number(self, name: str, default: int) -> int:
        """A field of processor_config.json, or else of config.json."""
        value = self.processor.get(name, self.config.get(name))
        return default if value is None else int(value)
