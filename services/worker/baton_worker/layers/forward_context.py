"""What the layers of one forward pass share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from baton_worker.layers.attention.whole_texts import Texts
from baton_worker.layers.rope.rope import Angles
from baton_worker.spec import Rope


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """Computed once, read by every layer: where new keys go, rotations, attention plans."""

    slots: Tensor
    """int64 [T], see `AttentionBatch.slot_mapping`."""
    angles: dict[Rope, Angles]
    plans: dict[Any, Any]
    """Of each kind of mixer, by its `call`."""
    texts: tuple[Texts, ...] = ()
    """The texts that see both ways."""
    lent: list[Tensor] = field(default_factory=list)
    """What the last `spec.KVSharingSource` lends: [T, 2 * num_kv_heads, head_dim]."""
    pending: list[Tensor] = field(default_factory=list)
    """What a `spec.ShortcutMoe` leaves for the end of the next layer: [T, hidden]."""
    chosen: list[Tensor] = field(default_factory=list)
    """What the last index has chosen, see `layers.chosen.Plan`."""
    positions: Tensor | None = None
    """int64 [T], each token's position in its sequence, or [axes, T]."""
