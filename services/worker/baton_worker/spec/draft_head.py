"""Trained draft heads of speculative decoding, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from baton_worker.spec.checkpoint import TensorLayout
from baton_worker.spec.decoder import Decoder
from baton_worker.spec.norm import Norm


@dataclass(frozen=True, slots=True)
class Fusion:
    """The stream of a draft head: a projection of an embedding and a hidden state, each normed or
    not, side by side."""

    embedding_norm: Norm | None = None
    hidden_norm: Norm | None = None
    hidden_first: bool = False
    bias: bool = False


@dataclass(frozen=True, slots=True)
class JoinedAttention:
    """EAGLE-3 (arXiv:2503.01840): the first layer attends over an embedding and a hidden state,
    each normed, side by side; the stream is the hidden state, or the normed one with
    `residual_normed`. What the target has in several layers is projected to one hidden state."""

    residual_normed: bool = False


@dataclass(frozen=True, slots=True)
class LayerHead:
    """Decoder layers that draft (EAGLE, arXiv:2401.15077; multi-token prediction of DeepSeek-V3,
    arXiv:2412.19437).

    At position i they read the embedding of token i + 1 and the target's hidden state of position
    i, and predict token i + 2. The next draft reads what they made of position i in place of a
    hidden state. They keep KV of their own, and embed with the target's table.
    """

    decoder: Decoder
    """The layers; `vocab` is that of drafts."""
    inputs: Fusion | JoinedAttention
    reads: tuple[int, ...] = ()
    """The target's layers whose inputs are the hidden states; none: its last hidden state."""
    first_norm: bool = True
    """Whether the first layer norms the input of its attention."""
    carries_normed: bool = False
    """Whether the next draft reads the hidden state after the final norm, not before it."""
    hidden_scale: float = 1.0
    """Factor on hidden states."""
    own_embedding: bool = False
    """Whether the head embeds with a table of its own."""
    own_head: bool = False
    """Whether it has a language head of its own; the final norm is its own in any case."""
    target_vocab: int = 0
    """Tokens of the target; where the decoder has fewer, the checkpoint maps them to these."""
    prefixes: tuple[str, ...] = ()
    """Prefixes of its tensors in a checkpoint that holds more; none: all tensors are its own."""
    further: tuple[LayerHead, ...] = ()
    """Heads of one layer each that make the second draft and the ones behind it: every one reads
    what the one before has made of a position, and the embedding of one token later."""

    @property
    def hidden(self) -> int:
        """Channels of its stream, and of the hidden states if it reads the last ones."""
        return self.decoder.hidden

    @property
    def vocab(self) -> int:
        """Tokens that it drafts."""
        return self.decoder.vocab


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


DraftHead: TypeAlias = LayerHead | MedusaHeads | MlpSpeculator
