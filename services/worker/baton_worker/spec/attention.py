"""Attention over the paged cache, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from baton_worker.spec.norm import Norm
from baton_worker.spec.rope import Rope


class ContextShard(NamedTuple):
    """The tokens of a sequence kept by one context-parallel rank: positions `rank`, `rank + size`,
    ..."""

    rank: int
    size: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) over the paged cache.

    `bias` applies to the q, k and v projections, `output_bias` to the output projection. A token
    attends to the last `window` tokens including itself; None means all. Without `rope`, positions
    come from `slopes` (ALiBi, Press et al. 2021, arXiv:2108.12409: one slope per query head, times
    the distance), if any. `qk_norm` normalises queries and keys before or after the rotation, over
    each "head" with a shared weight, "each" head with its own weight, or the "full" width; with
    `key_norm_only`, keys alone. `softcap` bounds scores smoothly to (-softcap, softcap); `clip`
    clamps the output of the q, k and v projections.

    With `chunk`, a token attends only within its chunk of that many positions. With `sinks`, one
    learned score per head joins the softmax (gpt-oss); with `sink_keys`, that many learned keys and
    values join, their keys normed like the others. `temperature` (scale, floor) multiplies a query
    by 1 + scale * log(1 + (position + 1) // floor) (arXiv:2501.19399). Values of `value_dim`
    channels, fewer than `head_dim`, are multiplied by `value_scale`. `gate` multiplies the
    attention output by the sigmoid of another projection of the input (with bias if `gate_bias`):
    one weight per "head" or per "channel". With `query_rank`, queries come from a low-rank vector,
    normed by `query_rank_norm`. `first_heads` are the checkpoint's indices of the first query and
    KV head if these heads are a shard. With `context`, this rank's cache holds a part of the
    tokens.
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
        """Channels of a cached value if not `head_dim`; `sink_keys` add one channel."""
        kept = self.head_dim if self.value_dim is None else self.value_dim + (self.sink_keys > 0)
        return None if kept == self.head_dim else kept


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) over a cache of latents.

    Keys and values are up-projected from a normed latent of `kv_rank` channels; `rope_dim` more key
    channels are rotated and shared by all heads. The cache holds only these two. Queries have
    `nope_dim + rope_dim` channels and come from a normed vector of `query_rank` channels, or from
    the input if it is None. Without `rope` there is no rotation. `bias` applies to the
    down-projections and the output projection.
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
    """Factor on the normed latents."""
    context: ContextShard | None = None
    """The tokens in this rank's cache; None: all."""

    @property
    def width(self) -> int:
        """Cached channels per token read by attention."""
        return self.kv_rank + self.rope_dim

    @property
    def kept_width(self) -> int:
        """Cached channels per token."""
        return self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseLatentAttention(LatentAttention):
    """Latent attention to the `top_k` earlier tokens with the highest indexer scores
    (DeepSeek-V3.2, arXiv:2512.02556).

    The indexer has one key of `index_dim` channels per token, normed by `index_norm`, and
    `index_heads` queries projected from the vector of `query_rank` channels. A score is the sum
    over heads of relu(query . key), weighted by another projection of the input. The first
    `rope_dim` channels of both are rotated by `rope`, interleaved if `index_interleaved`. A layer
    without `index_heads` reuses the selection of the last layer that has them.
    """

    top_k: int
    index_heads: int
    index_dim: int
    index_norm: Norm
    index_interleaved: bool = False

    @property
    def kept_width(self) -> int:
        """Cached channels per token: those read by attention, then the index key."""
        return self.kv_rank + self.rope_dim + (self.index_dim if self.index_heads else 0)


@dataclass(frozen=True, slots=True)
class KVSharingSource(Attention):
    """Attention whose KV (keys rotated, not yet normed) is shared with the following layers
    (cross-layer attention, arXiv:2405.12981)."""


@dataclass(frozen=True, slots=True)
class KVSharingTarget(Attention):
    """Attention with its own queries over the KV of the last `KVSharingSource`; it norms the keys
    itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DualChunkAttention(Attention):
    """Dual chunk attention: relative distances stay within the trained context (An et al. 2024,
    arXiv:2402.17463).

    A chunk has `chunk_size - local_size` tokens. A key is rotated by its position p within its
    chunk, as is a query for keys of the same chunk. For keys of the previous chunk a query is at
    `chunk_len + p`, at most `chunk_size`, and for earlier ones at the last position of a chunk.
    Scores of a query at position n >= `trained` are multiplied by (0.1 * log((n + 1) / trained) +
    1)^2 (YaRN, Peng et al. 2023, arXiv:2309.00071).
    """

    chunk_size: int
    local_size: int
    trained: int = 0

    @property
    def chunk_len(self) -> int:
        """Number of tokens in a chunk."""
        return self.chunk_size - self.local_size


@dataclass(frozen=True, slots=True)
class CausalAttention(Attention):
    """Causal attention in an encoder."""
