"""Layers that carry a state from token to token, as data."""

from __future__ import annotations

from dataclasses import dataclass

from baton_worker.spec.norm import GatedNorm, Norm


class Recurrent:
    """A mixer with a bounded receptive field and optionally a state."""

    __slots__ = ()

    @property
    def row(self) -> tuple[int, int, int]:
        """Shape of a token's page row: [parts, heads, channels]."""
        raise NotImplementedError

    @property
    def state(self) -> tuple[int, ...] | None:
        """Shape of the float32 state before a page's first token, stored beside its tokens; None if
        there is no state."""
        return None

    def span(self, page_size: int) -> int:
        """Maximum number of tokens a token reads, itself included. With a state this includes the
        previous page, which determines the state of its own."""
        return page_size + 1


class RecurrentWithConv(Recurrent):
    """A mixer with a state and a causal convolution of `taps` on its inputs."""

    __slots__ = ()
    taps: int

    def span(self, page_size: int) -> int:
        """At least the taps: pages may be shorter than the convolution."""
        return max(page_size + 1, self.taps)


@dataclass(frozen=True, slots=True)
class ShortConv(Recurrent):
    """A gated short convolution (LFM2, arXiv:2511.23404): one projection yields b, c and x; each
    channel of b * x is convolved with `taps` learned numbers, the last for the token itself, and
    multiplied by c before the output projection.

    The cache holds b * x of each token. `bias` applies to both projections and the convolution.
    """

    channels: int
    taps: int
    bias: bool = False

    @property
    def row(self) -> tuple[int, int, int]:
        """One vector."""
        return 1, 1, self.channels

    def span(self, page_size: int) -> int:
        """The number of taps."""
        return self.taps


@dataclass(frozen=True, slots=True)
class LinearAttention(Recurrent):
    """Linear attention (Lightning Attention-2, arXiv:2401.04658): head h weights the token n steps
    back by exp(-n * `decays[h]`).

    `activation` is applied to queries, keys and values; the head outputs are normed jointly by
    `norm` and multiplied by the sigmoid of another projection. A page holds KV and the state before
    its first token.
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
        """[heads, key_dim, value_dim]."""
        return self.num_heads, self.head_dim, self.head_dim


@dataclass(frozen=True, slots=True)
class DeltaNet(RecurrentWithConv):
    """A delta rule with decay (Gated DeltaNet, Yang et al. 2024, arXiv:2412.06464).

    Queries, keys and values are convolved with `taps` numbers per channel, then activated; queries
    and keys are normalised to unit length. There are `num_heads` value heads; consecutive ones
    share a query and key head. Beta, the weight of a correction, is `strength` times a sigmoid. The
    decay is one number per head, or, with a `rank`, one per key channel (Kimi Delta Attention,
    arXiv:2510.26692): then the decays and the gate of `norm` are low-rank projections of that rank.

    Per token a page holds the input of the convolution, its output key and value, and the inputs of
    beta and decay.
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
    tiled_output: bool = False
    """The output projection takes the first value head of every key head, then the second ones:
    the order of GGUF files."""

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
        """Number of decay channels."""
        return self.num_heads if self.rank is None else self.key_width

    @property
    def row(self) -> tuple[int, int, int]:
        """One vector."""
        width = self.key_width + self.value_width + self.num_heads + self.decays
        return 1, 1, self.convolved + width

    @property
    def state(self) -> tuple[int, ...]:
        """[heads, key_dim, value_dim]."""
        return self.num_heads, self.key_dim, self.value_dim


@dataclass(frozen=True, slots=True)
class StateSpace(RecurrentWithConv):
    """Mamba-2 (state space duality, Dao and Gu 2024, arXiv:2405.21060): a token multiplies the
    state of a head by exp(dt A), adds dt x B^T, and reads it with C.

    x, B and C are projections of the input followed by a causal convolution of `taps`; the heads of
    each of `num_groups` groups share B and C. `bias` applies to the projections, `conv_bias` to the
    convolution; dt is clamped to `limits`. A page holds the convolution's input, its outputs x and
    B, dt, and the state before its first token.
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
    """Bias of the output projection; None: as `bias`."""
    scales: tuple[float, float, float, float, float] | None = None
    """Factors on the projected gate, C, x, B and dt."""

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
        """One vector: C, x, B before the convolution, x and B after it, dt."""
        return 1, 1, self.conv_width + self.width + self.group_width + self.num_heads

    @property
    def state(self) -> tuple[int, ...]:
        """[heads, state_size, head_dim]."""
        return self.num_heads, self.state_size, self.head_dim


@dataclass(frozen=True, slots=True)
class SelectiveStateSpace(RecurrentWithConv):
    """Mamba-2's heads with Mamba-1's selection (PLaMo 2, arXiv:2509.04897): B, C and the time steps
    are projected from the convolved inputs, normed, and the time steps projected again, from
    `step_rank` channels to one per head.

    One decay per head, one B and C for all heads, and a gate without a norm. A page holds the
    convolution's input and output, B, dt, and the state before its first token.
    """

    num_heads: int
    head_dim: int
    state_size: int
    step_rank: int
    taps: int
    norm: Norm

    @property
    def width(self) -> int:
        """Channels of all heads."""
        return self.num_heads * self.head_dim

    @property
    def row(self) -> tuple[int, int, int]:
        """One vector: inputs before and after the convolution, B, dt."""
        return 1, 1, 2 * self.width + self.state_size + self.num_heads

    @property
    def state(self) -> tuple[int, ...]:
        """[heads, state_size, head_dim]."""
        return self.num_heads, self.state_size, self.head_dim


@dataclass(frozen=True, slots=True)
class Mamba(RecurrentWithConv):
    """A selective state space (Mamba, Gu and Dao 2023, arXiv:2312.00752): `channels` inputs, each
    convolved with `taps` learned numbers and passed through `activation`, drive states of
    `state_size` numbers with input-dependent parameters.

    Time steps come from a vector of `step_rank` channels; with `norm`, that vector, B and C are
    normed. `bias` applies to the input and output projection. Per token a page holds the
    convolution's input and output, the time steps before their bias, and B; and the state before
    its first token.
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
        """[state_size, channels]."""
        return self.state_size, self.channels
