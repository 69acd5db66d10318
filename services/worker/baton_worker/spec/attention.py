"""Attention over the paged cache, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from baton_worker.spec.norm import Norm
from baton_worker.spec.rope import Rope


class ContextShard(NamedTuple):
    """Which tokens of a sequence a rank keeps where several keep a part each: the one at position
    `rank`, counted from 0, and from there every `size`th."""

    rank: int
    size: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) over the paged cache.

    `bias` is for the q, k and v projections, `output_bias` for the one after them. A token sees
    the last `window` tokens, itself included; None means all of them. `rope` None leaves positions
    to `slopes` (ALiBi, Press et al. 2021, arXiv:2108.12409: one per query head, times the distance)
    or to nobody. `qk_norm` normalises queries and keys before the rotation or after it, over
    each "head" with one weight for all of them, "each" head with a weight of its own, or the
    "full" width; with `key_norm_only`, the keys alone. `softcap` bends scores into (-softcap,
    softcap); `clip` bounds what the q, k and v projections put out.

    With a `chunk`, a token sees only its own chunk of so many positions. With `sinks`, one learned
    score per head takes part in the softmax (gpt-oss); with `sink_keys`, so many learned keys and
    values do, whose keys are normed like the others. `temperature` (scale, floor) multiplies a
    query by 1 + scale * log(1 + (position + 1) // floor) (arXiv:2501.19399). Values of `value_dim`
    channels, less than `head_dim`, are multiplied by `value_scale`. `gate`
    weighs what the attention puts out by the sigmoid of one more projection of its input, with a
    bias where `gate_bias`: one weight per "head" or per "channel". With a `query_rank`, queries
    come from a narrow vector, normed by `query_rank_norm`. `first_heads` are the numbers of the
    first query and key head in the checkpoint, where these heads are a part of those that it has.
    With a `context` the cache of this rank has a part of the tokens.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None
    bias: bool = False
    output_bias: bool = False
    qk_norm: Norm | None = None
    window: int | None = None
    qk_norm_over: str = "head"
    qk_norm_after_rope: bool = False
    slopes: tuple[float, ...] | None = None
    softcap: float | None = None
    clip: float | None = None
    chunk: int | None = None
    sinks: bool = False
    sink_keys: int = 0
    key_norm_only: bool = False
    temperature: tuple[float, float] | None = None
    value_dim: int | None = None
    value_scale: float = 1.0
    gate: str | None = None
    gate_bias: bool = False
    query_rank: int | None = None
    query_rank_norm: Norm | None = None
    first_heads: tuple[int, int] = (0, 0)
    context: ContextShard | None = None

    @property
    def kept_dim(self) -> int | None:
        """Channels of a value in the cache, where they are not `head_dim`: with `sink_keys` one
        more than it has."""
        kept = self.head_dim if self.value_dim is None else self.value_dim + (self.sink_keys > 0)
        return None if kept == self.head_dim else kept


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) over a cache of latents.

    Keys and values are projected up from a normed vector of `kv_rank` channels; `rope_dim` more
    channels of a key are rotated and shared by all heads. The cache keeps those two alone. Queries
    have `nope_dim + rope_dim` channels and come from a normed vector of `query_rank` channels, or
    straight from the input where it is None. Without a `rope` nothing turns. `bias` is for the
    projections down and the last one.
    """

    num_heads: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    rope: Rope | None
    norm: Norm
    query_rank: int | None = None
    bias: bool = False
    latent_scale: float = 1.0
    """What the normed latents are multiplied by."""
    context: ContextShard | None = None
    """Which tokens the cache of this rank has; None: all."""

    @property
    def width(self) -> int:
        """Channels of a token in the cache that attention reads."""
        return self.kv_rank + self.rope_dim

    @property
    def kept_width(self) -> int:
        """Channels of a token in the cache."""
        return self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseLatentAttention(LatentAttention):
    """Latent attention to those `top_k` of the earlier tokens that an index scores highest
    (DeepSeek-V3.2, arXiv:2512.02556).

    The index has one key of `index_dim` channels per token, normed by `index_norm`, and
    `index_heads` queries, made of the vector of `query_rank` channels. A score is the sum over
    heads of relu(query . key), each weighed by one more projection of the input. The first
    `rope_dim` channels of both turn as `rope` says, in the layout that `index_interleaved` says.
    A layer without `index_heads` attends to what the last one that has them has chosen.
    """

    top_k: int
    index_heads: int
    index_dim: int
    index_norm: Norm
    index_interleaved: bool = False

    @property
    def kept_width(self) -> int:
        """Channels of a token in the cache: behind what attention reads, the key of the index."""
        return self.kv_rank + self.rope_dim + (self.index_dim if self.index_heads else 0)


@dataclass(frozen=True, slots=True)
class KVSharingSource(Attention):
    """Attention whose keys, rotated and not yet normed, and values serve the layers that follow
    as well (cross-layer attention, arXiv:2405.12981)."""


@dataclass(frozen=True, slots=True)
class KVSharingTarget(Attention):
    """Attention with queries of its own over the keys and values of the last layer that lends;
    it norms those keys itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DualChunkAttention(Attention):
    """Attention in which no key is further from a query than the model was trained for (dual chunk
    attention, An et al. 2024, arXiv:2402.17463).

    Positions are counted in chunks of `chunk_size - local_size` tokens. A key is rotated by its
    place p in its chunk, and so is a query for the keys of its own chunk. For those of the chunk
    before, a query is at `chunk_len + p`, at most `chunk_size`, and for all earlier ones at that of
    the last token of a chunk. Scores of a query at position n of `trained` or more are multiplied
    by (0.1 * log((n + 1) / trained) + 1)^2 (YaRN, Peng et al. 2023, arXiv:2309.00071).
    """

    chunk_size: int
    local_size: int
    trained: int = 0

    @property
    def chunk_len(self) -> int:
        """Tokens of a chunk."""
        return self.chunk_size - self.local_size


@dataclass(frozen=True, slots=True)
class CausalAttention(Attention):
    """Attention in an encoder whose tokens see themselves and those before them, and no others."""
