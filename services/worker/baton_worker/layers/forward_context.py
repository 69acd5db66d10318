"""State shared by the layers of one forward pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from baton_worker.layers.attention.cross_states import CrossStep
from baton_worker.layers.attention.whole_texts import Texts
from baton_worker.layers.rope.rope import Angles
from baton_worker.spec import Rope


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """Computed once per step: slot mapping, rotations, attention plans."""

    slots: Tensor
    """int64 [T], see `AttentionBatch.slot_mapping`."""
    angles: dict[Rope, Angles]
    plans: dict[Any, Any]
    """Plan per kind of mixer, keyed by `Mixer.call`."""
    texts: tuple[Texts, ...] = ()
    """Texts with bidirectional attention."""
    shared_kv: list[Tensor] = field(default_factory=list)
    """KV of the last `spec.KVSharingSource`: [T, 2 * num_kv_heads, head_dim]."""
    pending: list[Tensor] = field(default_factory=list)
    """Output of a `spec.ShortcutMoe`, added at the end of the next layer: [T, hidden]."""
    embedded: list[Tensor] = field(default_factory=list)
    """The input of the first layer, [T, hidden], which a `spec.SharedAttention` reads."""
    chosen: list[Tensor] = field(default_factory=list)
    """KV slots selected by the last indexer, see `layers.attention.sparse_plan.Plan`."""
    positions: Tensor | None = None
    """int64 [T], each token's position in its sequence, or [axes, T]."""
    layer_embeddings: Tensor | None = None
    """[T, layers, width] of models with `spec.LayerEmbeddings`."""
    cross: CrossStep | None = None
    """Encoder states that tokens see; None: no token sees any."""
    vision: Tensor | None = None
    """bool [T]: which tokens are `spec.Decoder.vision_tokens`; None without such."""
