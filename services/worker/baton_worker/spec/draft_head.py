"""Trained draft heads of speculative decoding, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from baton_worker.spec.checkpoint import TensorLayout


@dataclass(frozen=True, slots=True)
class MedusaHeads:
    """Residual blocks and a language head per draft, over the target's last hidden state (Medusa,
    arXiv:2401.10774)."""

    hidden: int
    vocab: int
    num_heads: int
    num_layers: int
    bias: bool = False
    shared_head: bool = False
    """Whether all drafts have one language head."""
    target_vocab: int = 0
    """Tokens of the target; where `vocab` is smaller, the checkpoint maps its tokens to these."""
    tensors: TensorLayout = field(default_factory=TensorLayout)


@dataclass(frozen=True, slots=True)
class MlpSpeculator:
    """A state that starts as the target's last hidden state and takes in one token per draft
    (arXiv:2404.19124)."""

    hidden: int
    inner: int
    vocab: int
    num_heads: int
    state_weight: float
    """Share of the state; that of the token follows from it."""
    tied: bool = False
    """Whether all drafts have the same weights, but for the projection of the hidden state."""
    scale_input: bool = False
    """Whether the hidden state is normed and halved in power first."""
    tensors: TensorLayout = field(default_factory=TensorLayout)


DraftHead: TypeAlias = MedusaHeads | MlpSpeculator
