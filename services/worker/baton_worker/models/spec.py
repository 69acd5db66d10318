"""What a model is, as pure data: a frozen tree that `build` turns into layers.

Nothing here imports torch, so a spec can be read, printed and compared anywhere. Every field has
two users in two architectures; a one-off becomes a spec type (and a layer file) of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

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
    weighs what the attention puts out by the sigmoid of one more projection of its input: one
    weight per "head" or per "channel". With a `query_rank`, queries come from a narrow vector,
    normed by `query_rank_norm`. `first_heads` are the numbers of the first query and key head in
    the checkpoint, where these heads are a part of those that it has.
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
    query_rank: int | None = None
    query_rank_norm: Norm | None = None
    first_heads: tuple[int, int] = (0, 0)

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
    has here are here, and a visit to another returns nothing.
    """

    router: Router
    expert: Glu
    shared: Glu | None = None
    shared_gate: bool = False
    weigh_input: bool = False
    passes: bool = True
    dealt: ExpertMap | None = None


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
    for layers of attention, of linear attention, and for feed-forwards."""

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
    straight from the input where it is None. `bias` is for the projections down and the last one.
    """

    num_heads: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    rope: Rope
    norm: Norm
    query_rank: int | None = None
    bias: bool = False
    latent_scale: float = 1.0
    """What the normed latents are multiplied by."""

    @property
    def width(self) -> int:
        """Channels of a token in the cache."""
        return self.kv_rank + self.rope_dim


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


@dataclass(frozen=True, slots=True)
class ShortConv:
    """A gated short convolution (LFM2, arXiv:2511.23404): of one projection b, c and x, every
    channel of b * x is convolved with `taps` learned numbers, the last for the token itself, and
    multiplied by c before the output projection.

    The cache keeps b * x of each token, of which a token reads the last `taps`. `bias` is for all
    three: the projections and the convolution.
    """

    channels: int
    taps: int
    bias: bool = False


@dataclass(frozen=True, slots=True)
class LinearAttention:
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


Mixer: TypeAlias = Attention | LatentAttention | ShortConv | LinearAttention
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
