"""Layers that carry a state from token to token, as data."""

from __future__ import annotations

from dataclasses import dataclass

from baton_worker.spec.norm import GatedNorm, Norm


class Recurrent:
    """A mixer that sees a bounded number of tokens, and what went before as a state, if at all."""

    __slots__ = ()

    @property
    def row(self) -> tuple[int, int, int]:
        """What a page keeps of a token: [parts, heads, channels]."""
        raise NotImplementedError

    @property
    def state(self) -> tuple[int, ...] | None:
        """The shape of the float32 state before a page's first token, which lies beside the page's
        tokens; None: there is none."""
        return None

    def span(self, page_size: int) -> int:
        """How many of its last tokens, itself included, a token reads at most. With a state, those
        of the page before its own as well, from which its own begins."""
        return page_size + 1


class RecurrentWithConv(Recurrent):
    """A mixer with a state whose inputs pass a causal convolution of `taps`."""

    __slots__ = ()
    taps: int

    def span(self, page_size: int) -> int:
        """Pages may be shorter than the convolution."""
        return max(page_size + 1, self.taps)


@dataclass(frozen=True, slots=True)
class ShortConv(Recurrent):
    """A gated short convolution (LFM2, arXiv:2511.23404): of one projection b, c and x, every
    channel of b * x is convolved with `taps` learned numbers, the last for the token itself, and
    multiplied by c before the output projection.

    The cache keeps b * x of each token, of which a token reads the last `taps`. `bias` is for all
    three: the projections and the convolution.
    """

    channels: int
    taps: int
    bias: bool = False

    @property
    def row(self) -> tuple[int, int, int]:
        """One vector."""
        return 1, 1, self.channels

    def span(self, page_size: int) -> int:
        """The taps."""
        return self.taps


@dataclass(frozen=True, slots=True)
class LinearAttention(Recurrent):
    """Attention without a softmax (Lightning Attention-2, arXiv:2401.04658): head h weighs what is
    n tokens back by exp(-n * `decays[h]`).

    `activation` is applied to queries, keys and values; what the heads put out is normed by `norm`
    over all of them and multiplied by the sigmoid of one more projection. A page keeps keys and
    values, and the state before its first token.
    """

    num_heads: int
    head_dim: int
    decays: tuple[float, ...]
    norm: Norm
    activation: str = "silu"

    @property
    def row(self) -> tuple[int, int, int]:
        """The keys of all heads, then their values."""
        return 1, 1, 2 * self.num_heads * self.head_dim

    @property
    def state(self) -> tuple[int, ...]:
        """Per head, of each channel of a key those of a value."""
        return self.num_heads, self.head_dim, self.head_dim


@dataclass(frozen=True, slots=True)
class DeltaNet(RecurrentWithConv):
    """A state that forgets, and that each token corrects for its key (Gated DeltaNet, Yang et al.
    2024, arXiv:2412.06464).

    Queries, keys and values are convolved with `taps` numbers per channel, then activated; queries
    and keys are divided by their length. There are `num_heads` heads of values; a head of queries
    and keys serves as many of them as follow each other. How much a correction counts is
    `strength` times a sigmoid. What remains of the state from token to token is one number per
    head, or, with a `rank`, one per channel of its keys (Kimi Delta Attention, arXiv:2510.26692):
    then these and the gate of `norm` come from narrow vectors of so many channels.

    A page keeps of each token what goes into its convolution, the key and the value that come out,
    and what the strength and the decay are computed from.
    """

    num_key_heads: int
    num_heads: int
    key_dim: int
    value_dim: int
    taps: int
    norm: GatedNorm
    activation: str = "silu"
    strength: float = 1.0
    rank: int | None = None

    @property
    def key_width(self) -> int:
        """Channels of all keys."""
        return self.num_key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Channels of all values."""
        return self.num_heads * self.value_dim

    @property
    def convolved(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_width + self.value_width

    @property
    def decays(self) -> int:
        """Numbers that say what remains of the state."""
        return self.num_heads if self.rank is None else self.key_width

    @property
    def row(self) -> tuple[int, int, int]:
        """One vector."""
        kept = self.key_width + self.value_width + self.num_heads + self.decays
        return 1, 1, self.convolved + kept

    @property
    def state(self) -> tuple[int, ...]:
        """Per head, of each channel of a key those of a value."""
        return self.num_heads, self.key_dim, self.value_dim


@dataclass(frozen=True, slots=True)
class StateSpace(RecurrentWithConv):
    """Mamba-2 (state space duality, Dao and Gu 2024, arXiv:2405.21060): per head a state that a
    token lets fade by exp(dt A) and adds dt x B^T to, and of which C reads.

    x, B and C are projections of the input behind a causal convolution of `taps`; B and C are
    shared by the heads of one of `num_groups`. `bias` is for the projections, `conv_bias` for the
    convolution; dt is kept within `limits`. A page keeps what the convolution reads, what it has
    made of x and B, and dt, and the state before its first token.
    """

    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    taps: int
    norm: GatedNorm | None
    """None: the gate is multiplied in without a norm."""
    limits: tuple[float, float] = (0.0, float("inf"))
    bias: bool = False
    conv_bias: bool = True
    activation: str = "silu"
    output_bias: bool | None = None
    """For the last projection; None: as `bias`."""
    scales: tuple[float, float, float, float, float] | None = None
    """What the gate, C, x, B and dt are multiplied by as they are projected."""

    @property
    def width(self) -> int:
        """Channels of all heads."""
        return self.num_heads * self.head_dim

    @property
    def group_width(self) -> int:
        """Channels of B, and of C."""
        return self.num_groups * self.state_size

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.width + 2 * self.group_width

    @property
    def row(self) -> tuple[int, int, int]:
        """One vector: C, x, B as they were, x and B as they are, dt."""
        return 1, 1, self.conv_width + self.width + self.group_width + self.num_heads

    @property
    def state(self) -> tuple[int, ...]:
        """Per head, of each channel of B those of x."""
        return self.num_heads, self.state_size, self.head_dim


@dataclass(frozen=True, slots=True)
class Mamba(RecurrentWithConv):
    """A selective state space (Mamba, Gu and Dao 2023, arXiv:2312.00752): `channels` inputs, each
    convolved with `taps` learned numbers and passed through `activation`, drive states of
    `state_size` numbers, and how, the inputs say themselves.

    Time steps come from a vector of `step_rank` channels; with a `norm`, that vector and the two
    that say how states are written and read are normed. `bias` is for the first and the last
    projection. A page keeps of each token what the convolution reads and what it makes of it, the
    time steps before their bias and how states are written; and the state before its first token.
    """

    channels: int
    state_size: int
    step_rank: int
    taps: int
    conv_bias: bool = True
    bias: bool = False
    norm: Norm | None = None
    activation: str = "silu"

    @property
    def row(self) -> tuple[int, int, int]:
        """One vector."""
        return 1, 1, 3 * self.channels + self.state_size

    @property
    def state(self) -> tuple[int, ...]:
        """Of each number of a state, all channels."""
        return self.state_size, self.channels
