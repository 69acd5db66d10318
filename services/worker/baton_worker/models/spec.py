"""What a model is, as pure data: a frozen tree that `build` turns into layers.

Nothing here imports torch, so a spec can be read, printed and compared anywhere. Every field has
two users in two architectures; a one-off becomes a spec type (and a layer file) of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from baton_worker.models.expert_map import ExpertMap

Parameter: TypeAlias = float | int | bool | str | tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm over the last axis: "rms" (Zhang and Sennrich 2019, arXiv:1910.07467) or "layer"
    (Ba et al. 2016, arXiv:1607.06450).

    The scale is the weight plus `offset` (1 where a checkpoint stores w of 1 + w); without
    `scaled` there is no weight, without `bias` no bias.
    """

    eps: float
    kind: str = "rms"
    bias: bool = False
    offset: float = 0.0
    scaled: bool = True


@dataclass(frozen=True, slots=True)
class GatedNorm:
    """Root mean squares over each of `groups` equal parts, and the silu of a gate, which is
    multiplied in before the norm or, without `gate_first`, after it. The scale is as wide as a part
    and serves them all where it is `shared`. Where the one part is `cut`, other ranks have more of
    its channels. `activation` is what is made of the gate: "silu" or "sigmoid"."""

    eps: float
    groups: int = 1
    gate_first: bool = True
    shared: bool = False
    cut: bool = False
    activation: str = "silu"


@dataclass(frozen=True, slots=True)
class Sections:
    """How a rope deals out its channels among several axes of positions, such as time, height and
    width (M-RoPE, Wang et al. 2024, arXiv:2409.12191).

    `sizes` are pairs of channels; which axis gets which of them is said by `layout`, a row of
    `layers.sections.LAYOUTS`. Where all axes of a token are equal, as in text, this is a plain
    rope.
    """

    sizes: tuple[int, ...]
    layout: str = "runs"


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

    Channel i turns with channel i + dim / 2 (the half-split layout), or where `interleaved` with
    its neighbour, as the paper has it. `dim` is the number of rotated channels of each head,
    `base` the wavelength base, `kind` a row of `layers.rope.FREQUENCIES`, `max_position` the
    context that the checkpoint declares, and `parameters` what that kind needs, as sorted
    (name, value) pairs. With `sections` a token may have a position on each of several axes.
    """

    dim: int
    base: float
    max_position: int
    kind: str = "default"
    parameters: tuple[tuple[str, Parameter], ...] = ()
    interleaved: bool = False
    sections: Sections | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FourierRope(Rope):
    """A rope whose cosines and sines are mixed by matrices of the checkpoint (FoPE, Hua et al.
    2024, arXiv:2412.17739).

    Of the frequencies, only the `kept` highest are mixed; the other channels do not turn. Each key
    head, and the query heads that go with it, has matrices of its own where `each_head`.
    """

    num_heads: int
    num_kv_heads: int
    kept: int
    each_head: bool = True


class Context(NamedTuple):
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
    context: Context | None = None

    @property
    def kept_dim(self) -> int | None:
        """Channels of a value in the cache, where they are not `head_dim`: with `sink_keys` one
        more than it has."""
        kept = self.head_dim if self.value_dim is None else self.value_dim + (self.sink_keys > 0)
        return None if kept == self.head_dim else kept


@dataclass(frozen=True, slots=True)
class Glu:
    """Gated feed-forward: down(activation(gate(x)) * up(x)) (Shazeer 2020, arXiv:2002.05202).

    With a `limit`, up is clamped to [-limit, limit] and the gate to at most `limit`, after its
    activation or, with `limit_first`, before it. `up_offset` is added to up after that. With
    `down_bias` the down projection has a bias even where the other two have none.
    """

    intermediate: int
    activation: str = "silu"
    bias: bool = False
    limit: float | None = None
    limit_first: bool = False
    up_offset: float = 0.0
    down_bias: bool = False
    gate_scale: float = 1.0
    """What a gate is multiplied by before its activation."""


@dataclass(frozen=True, slots=True)
class Mlp:
    """Plain feed-forward: down(activation(up(x)))."""

    intermediate: int
    activation: str = "gelu"
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Positions:
    """Learned positions, added to the token vectors: row position + `offset` of `size` rows."""

    size: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Embedding:
    """Token ids to the first hidden state: scale * table[token] (+ positions), then `norm`.

    A table narrower than the stack (`width`) is projected into it, and out of it before the head.
    """

    scale: float = 1.0
    positions: Positions | None = None
    norm: Norm | None = None
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Router:
    """Which experts a token goes to, and with what weight.

    Scores are `score` (a row of `layers.routers.base.SCORES`) of the router's logits. The `top_k`
    highest are chosen, after `correction` (a vector of the checkpoint) is added for the choice
    alone. With groups, only the `top_groups` best of `num_groups` equal groups take part; a group
    is worth the sum of its `group_width` best (DeepSeek-V3, arXiv:2412.19437). The weights of the
    chosen are divided by their `norm`-norm, at least `norm_floor`, and multiplied by `scale`.
    A softmax taken over the chosen alone is a softmax over all of them with `norm=1`.

    Experts from `num_experts` on are `zero_experts`: they return the token as it is.
    `kind` is a row of `layers.routers.ROUTERS`; `parameters` are for kinds that need more.
    """

    num_experts: int
    top_k: int
    score: str = "softmax"
    bias: bool = False
    correction: bool = False
    num_groups: int = 1
    top_groups: int = 1
    group_width: int = 1
    norm: float | None = None
    norm_floor: float = 0.0
    scale: float = 1.0
    zero_experts: int = 0
    kind: str = "top_k"
    parameters: tuple[tuple[str, Parameter], ...] = ()


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): each token visits a few.

    `shared` is one more feed-forward that every token visits; `shared_gate` weighs it by the
    sigmoid of one learned projection. The router's weights apply to what an expert returns, or,
    with `weigh_input`, to what it is given. Without `passes`, zero experts return nothing here: of
    the parts of a mixture that is cut, one does it for all. With `dealt`, only the experts that it
    has here are here, and a visit to another returns nothing. Experts of a `width` of their own see
    so many channels, projected from the stream, and what they return is projected back.
    """

    router: Router
    expert: Glu | Mlp
    shared: Glu | Mlp | None = None
    shared_gate: bool = False
    weigh_input: bool = False
    passes: bool = True
    dealt: ExpertMap | None = None
    width: int | None = None


@dataclass(frozen=True, slots=True)
class PlainExperts:
    """Experts without gates: the `top_k` of them that a softmax prefers, weighed by it, plus one
    bias for all (MegaBlocks, Gale et al. 2022, arXiv:2211.15841)."""

    num_experts: int
    top_k: int
    intermediate: int
    activation: str = "gelu"


@dataclass(frozen=True, slots=True)
class Forked:
    """A feed-forward and, from the same input, a mixture of experts whose result joins the stream
    one layer later (LongCat-Flash, arXiv:2509.01322); for the style "shortcut"."""

    dense: Glu
    branch: Moe


@dataclass(frozen=True, slots=True)
class Head:
    """The language head: logits = scale * (hidden W^T + b), bent into (-softcap, softcap).

    `tied` reuses the embedding table as W; `unit_rows` divides each row of W by its length.
    """

    tied: bool = False
    bias: bool = False
    scale: float = 1.0
    softcap: float | None = None
    unit_rows: bool = False


@dataclass(frozen=True, slots=True)
class Skip:
    """Before layer `to`, mix in what entered layer `source`: weight * old + (1 - weight) * x."""

    source: int
    to: int
    weight: float


@dataclass(frozen=True, slots=True)
class Blend:
    """What the normed stream and what a half makes of it count, (old, new), in the style "blended":
    for layers of attention, of linear attention, and for feed-forwards. In the style "beside", by
    what its input and what it makes are multiplied, (input, output)."""

    attention: tuple[float, float] = (1.0, 1.0)
    linear: tuple[float, float] = (1.0, 1.0)
    ffn: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Fused:
    """One checkpoint tensor that holds the rows of several roles.

    The rows come in `groups` equal groups, each with its share of every part in turn: with one
    group q, k and v lie one after the other; with one group per head they alternate head by head.
    `transposed` is for a weight stored as [in, out].
    """

    source: str
    parts: tuple[str, ...]
    groups: int = 1
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Stacked:
    """One checkpoint tensor that holds a part of every expert of a layer.

    `source` is its whole name, `parts` the roles that it fills, each with `{expert}` in its name.
    The first axis is the expert, or expert times row where `flat`. An expert's share holds the
    rows of each part in turn, or row by row in turn where `interleaved`; it is stored as [in, out]
    where `transposed`. With `scales`, the name of a second tensor, both are MXFP4 (see
    `models.mxfp4`).
    """

    source: str
    parts: tuple[str, ...]
    suffix: str = "weight"
    flat: bool = False
    interleaved: bool = False
    transposed: bool = False
    scales: str | None = None


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
    context: Context | None = None
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
class LendingAttention(Attention):
    """Attention whose keys, rotated and not yet normed, and values serve the layers that follow
    as well (cross-layer attention, arXiv:2405.12981)."""


@dataclass(frozen=True, slots=True)
class BorrowingAttention(Attention):
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


class Bounded:
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


class Convolved(Bounded):
    """A mixer with a state whose inputs pass a causal convolution of `taps`."""

    __slots__ = ()
    taps: int

    def span(self, page_size: int) -> int:
        """Pages may be shorter than the convolution."""
        return max(page_size + 1, self.taps)


@dataclass(frozen=True, slots=True)
class ShortConv(Bounded):
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
class LinearAttention(Bounded):
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
class DeltaNet(Convolved):
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
class StateSpace(Convolved):
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
class Mamba(Convolved):
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


Mixer: TypeAlias = Attention | LatentAttention | Bounded
Ffn: TypeAlias = Glu | Mlp | Moe | PlainExperts | Forked


@dataclass(frozen=True, slots=True)
class Decoder:
    """A causal language model: embedding, one (mixer, ffn) pair per layer, norm and head.

    A layer may lack its mixer or its ffn (None): then it lacks that half of the residual block,
    norm included. `style` is a row of `models.decoder.STYLES`: where the norms sit around the
    residual stream; what a half adds to the stream is multiplied by `residual_scale`.

    The checkpoint: `names` lists only the names that differ from `models.names.DEFAULT`, `fused`
    the tensors that hold several roles, `unused` the prefixes of tensors that may stay unread.
    """

    hidden: int
    vocab: int
    layers: tuple[tuple[Mixer | None, Ffn | None], ...]
    norm: Norm
    head: Head
    style: str = "pre"
    names: tuple[tuple[str, str], ...] = field(default=())
    max_length: int = 0
    """Tokens, prompt and completion together, that the checkpoint declares."""
    embedding: Embedding = Embedding()
    residual_scale: float = 1.0
    final_norm: bool = True
    blend: Blend = Blend()
    skips: tuple[Skip, ...] = ()
    fused: tuple[Fused, ...] = ()
    unused: tuple[str, ...] = ()
    stacked: tuple[Stacked, ...] = ()
    """Tensors that hold a part of every expert."""
    renames: tuple[tuple[str, str], ...] = ()
    """Other spellings of tensor names: regular expression and replacement, applied in turn."""


@dataclass(frozen=True, slots=True)
class Dense:
    """One layer of a head over pooled states: norm(activation(W x + b)).

    `name` is the checkpoint's; `activation` a row of `layers.dense.ACTIVATIONS`.
    """

    name: str
    inputs: int
    outputs: int
    bias: bool = True
    activation: str = "identity"
    norm: Norm | None = None
    norm_name: str = ""


@dataclass(frozen=True, slots=True)
class Encoder(Decoder):
    """A stack in which every token of a text sees every other: no cache, no next token.

    Its mixers are `Attention` whose `window`, where there is one, reaches to either side. Tokens,
    positions and `token_types` rows for the first and the second text of a pair are added up, then
    normed by `embedding_norm`. `classifier` makes scores of the "first" token's state, or of the
    "mean", where the checkpoint has it. The `bare_layers` first layers have no norm before their
    mixer.
    """

    token_types: int = 0
    embedding_norm: Norm | None = None
    classifier: tuple[Dense, ...] = ()
    classify_from: str = "first"
    bare_layers: int = 0


@dataclass(frozen=True, slots=True)
class Patches:
    """An image as vectors: squares of `size` pixels, each projected (ViT, Dosovitskiy et al. 2020,
    arXiv:2010.11929), and learned positions.

    Images have `image` x `image` pixels of three channels; what remains at the right and at the
    bottom, less than a square, is not seen. With a `class_token` one learned vector stands first.
    """

    image: int
    size: int
    bias: bool = False
    class_token: bool = False

    @property
    def count(self) -> int:
        """Vectors of one image."""
        squares: int = (self.image // self.size) ** 2
        return squares + self.class_token


@dataclass(frozen=True, slots=True)
class AttentionPool:
    """One learned query over the states of an image, then x + ffn(norm(x)) (multihead attention
    pooling, Zhai et al. 2022, arXiv:2106.04560)."""

    num_heads: int
    norm: Norm
    ffn: Mlp
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision(Encoder):
    """A stack over the patches of an image. Its vector is that of `pool`, or the state of the
    first patch, projected."""

    patches: Patches
    pool: AttentionPool | None = None
    projection: Dense | None = None


@dataclass(frozen=True, slots=True)
class Padding:
    """Texts shorter than `length` are filled up with the token `id`, which the others see."""

    length: int
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Towers(Encoder):
    """A stack for texts, which is what an `Encoder` is, and one for images, whose vectors are
    compared (CLIP, Radford et al. 2021, arXiv:2103.00020).

    The vector of a text is the state of its first token `end`, or where that is -1 of its highest
    id, or where there is none of its last token, projected. `max_length` is that of whichever is
    longer, `text_length` that of texts.
    """

    vision: Vision
    text_length: int
    projection: Dense
    end: int | None = None
    padding: Padding | None = None
