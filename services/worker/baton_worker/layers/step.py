"""What the layers of one forward pass share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from baton_worker.attention.base import AttentionCall
from baton_worker.layers.rope import Angles
from baton_worker.models.spec import Rope


@dataclass(frozen=True, slots=True)
class Step:
    """Computed once, read by every layer: where new keys go, rotations, attention plans."""

    slots: Tensor
    """int64 [T], see `AttentionBatch.slots`."""
    angles: dict[Rope, Angles]
    plans: dict[AttentionCall, Any]
