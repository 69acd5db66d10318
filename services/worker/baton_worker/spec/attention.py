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
class LowRank:
    """Queries come from a vector of `rank` channels, normed by `norm`."""

    rank: int
    norm: Norm


@dataclass(frozen=True, slots=True)
class Projections:
    """`bias` applies to the q, k and v projections, without `key_bias` not to the second of them,
    `output_bias` to the output projection; `clip` clamps the output of the former to [-clip,
    clip]."""

    bias: bool = False
    output_bias: bool = False
    clip: float | None = None
    query: LowRank | None = None
    """None: queries are projected at once."""
    key_bias: bool = True
    bounded: bool = False
    """In an encoder: inputs and outputs of each projection are clamped to bounds that the
    checkpoint has."""

    @property
    def unbiased(self) -> tuple[str, ...]:
        """Roles of the biased projection that have no bias of their own."""
        return () if self.key_bias else ("key", "cross_key")


@dataclass(frozen=True, slots=True)
class QkNorm:
    """Queries and keys are normed before the rotation, or `after_rope`; with `keys_only`, keys
    alone. `over` each "head" with a shared weight, "each" head with its own weight, or the "full"
    width."""

    norm: Norm
    over: str = "head"
    after_rope: bool = False
    keys_only: bool = False


@dataclass(frozen=True, slots=True)
class Mask:
    """What a token sees of what came before: the last `window` tokens, itself included, and with a
    `chunk` only those in its own chunk of that many positions; None means all. With `spans`, the
    tokens of one image also see those of it that come later."""

    window: int | None = None
    chunk: int | None = None
    spans: bool = False


@dataclass(frozen=True, slots=True)
class Scores:
    """Changes to scale * q.k before the softmax."""

    softcap: float | None = None
    """Bounds scores smoothly to (-softcap, softcap)."""
    slopes: tuple[float, ...] | None = None
    """ALiBi (Press et al. 2021, arXiv:2108.12409): one slope per query head, times the distance."""
    temperature: tuple[float, float, int] | None = None
    """(scale, floor, first) multiplies a query by 1 + scale * log(1 + (position + first) // floor)
    (arXiv:2501.19399)."""


@dataclass(frozen=True, slots=True)
class Values:
    """Values of `dim` channels, fewer than a key's, multiplied by `scale`."""

    dim: int
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class OutputGate:
    """The attention output is multiplied by the sigmoid of another projection of the input, or by
    its "softplus": one weight per "head" or per "channel"."""

    per: str
    bias: bool = False
    function: str = "sigmoid"


@dataclass(frozen=True, slots=True)
class Sinks:
    """One learned score per head joins the softmax (gpt-oss); or that many learned `keys` and
    their values, normed like the others (Pangu Pro)."""

    keys: int = 0


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) over the paged cache.

    Without `rope`, positions come from the slopes of `scores`, if any.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None
    mask: Mask = Mask()
    projections: Projections = Projections()
    qk_norm: QkNorm | None = None
    scores: Scores = Scores()
    values: Values | None = None
    """None: as wide as keys."""
    sinks: Sinks | None = None
    gate: OutputGate | None = None
    first_heads: tuple[int, int] = (0, 0)
    """The checkpoint's indices of the first query and KV head, if these heads are a shard."""
    context: ContextShard | None = None
    """The tokens in this rank's cache; None: all."""

    @property
    def value_dim(self) -> int:
        """Channels of a value."""
        return self.head_dim if self.values is None else self.values.dim

    @property
    def sink_keys(self) -> int:
        """Learned keys that join the softmax."""
        return 0 if self.sinks is None else self.sinks.keys

    @property
    def kept_dim(self) -> int | None:
        """Channels of a cached value if not `head_dim`; learned `sinks` keys add one channel."""
        stored = self.head_dim if self.values is None else self.values.dim + (self.sink_keys > 0)
        return None if stored == self.head_dim else stored


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Attention to the states of an encoder (Vaswani et al. 2017, arXiv:1706.03762), which have no
    order: a token sees all states of its media items, and none of other tokens.

    Its KV are in pages of their own, written once for each item (`models.cross_kv`), so a layer
    has no pages among those of the tokens.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    states: int
    """Channels of a state."""
    projections: Projections = Projections()
    qk_norm: QkNorm | None = None
    """Over each "head"."""
    alignment_heads: tuple[int, ...] = ()
    """Heads that attend to the place of a token in a recording."""


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
    temperature: tuple[float, float] | None = None
    """(scale, floor) multiplies a query by 1 + scale * log(1 + position // floor)."""
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


@dataclass(frozen=True, slots=True)
class Indexer:
    """One key of `dim` channels per token, normed by `norm`, and `heads` queries projected from the
    low-rank vector of queries.

    A score is the sum over heads of relu(query . key), weighted by another projection of the input.
    The first `rope_dim` channels of both are rotated, `interleaved` or not.
    """

    heads: int
    dim: int
    norm: Norm
    interleaved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseLatentAttention(LatentAttention):
    """Latent attention to the `top_k` earlier tokens with the highest scores of an `indexer`
    (DeepSeek-V3.2, arXiv:2512.02556). A layer without one reuses the selection of the last layer
    that has one."""

    top_k: int
    indexer: Indexer | None

    @property
    def kept_width(self) -> int:
        """Cached channels per token: those read by attention, then the index key."""
        return self.width + (0 if self.indexer is None else self.indexer.dim)


@dataclass(frozen=True, slots=True)
class KVSharingSource(Attention):
    """Attention whose KV (keys rotated, not yet normed) is shared with the following layers
    (cross-layer attention, arXiv:2405.12981)."""


@dataclass(frozen=True, slots=True)
class KVSharingTarget(Attention):
    """Attention with its own queries over the KV of the last `KVSharingSource`; it norms the keys
    itself."""


@dataclass(frozen=True, slots=True)
class NormedValueAttention(Attention):
    """Attention whose values are normed over each head, without a weight, by the eps of its
    `qk_norm` (Gemma 3n)."""


@dataclass(frozen=True, slots=True)
class KeyAsValueAttention(NormedValueAttention):
    """Attention whose values are its keys before their norm and rotation, normed as those of a
    `NormedValueAttention`: there is no projection of values (Gemma 4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVReuse(Attention):
    """Attention with its own queries over the KV that layer `source` keeps (Gemma 3n); it has no
    pages of its own. Its `qk_norm` is that of queries."""

    source: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedAttention(Attention):
    """Attention that shares its weights with all layers of the same `block` (Zamba2,
    arXiv:2411.15242); its input is the stream and the embeddings side by side.

    With an `adapter_rank`, each layer adds a low-rank product of its own to queries, keys and
    values.
    """

    block: int
    adapter_rank: int | None = None


@dataclass(frozen=True, slots=True)
class CausalAttention(Attention):
    """Causal attention in an encoder; a `window` extends to what comes before."""


@dataclass(frozen=True, slots=True)
class HalfCausalAttention(Attention):
    """Attention in an encoder where the first half of a text sees itself, and the second is causal
    behind it (DeepSeek-OCR 2, arXiv:2601.20552)."""
