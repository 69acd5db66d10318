"""What every format of checkpoints offers to a reader."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Protocol

from baton_worker.checkpoint.unstack import Stored
from baton_worker.spec import Decoder


class Checkpoint(Protocol):
    """A container of weights in any file format."""

    config: SimpleNamespace
    eos_token_ids: tuple[int, ...]

    def tensors(self, spec: Decoder) -> Iterator[tuple[str, Stored]]:
        """Every tensor once, under its Hugging Face name; quantised as it is stored."""
        ...
