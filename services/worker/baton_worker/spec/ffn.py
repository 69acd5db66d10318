"""Feed-forwards and mixtures of experts, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from baton_worker.spec.expert_map import ExpertMap
from baton_worker.spec.norm import Norm
from baton_worker.spec.rope import Parameter


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
    """Factor on the gate before its activation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGlu(Glu):
    """Gated feed-forward that shares its weights with all layers of the same `block` (Zamba2,
    arXiv:2411.15242); each layer adds a product of rank `adapter_rank` to gate and up."""

    block: int
    adapter_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseGlu(Glu):
    """Gated feed-forward whose gate is cut off below the quantile `sparsity` of a normal
    distribution with the mean and the deviation of its channels, and counts from there (Gemma 3n,
    Spark Transformer, arXiv:2506.06644)."""

    sparsity: float


@dataclass(frozen=True, slots=True)
class BoundedGlu(Glu):
    """Gated feed-forward whose projections clamp their inputs and outputs to bounds that the
    checkpoint has (Gemma 4's encoders)."""


@dataclass(frozen=True, slots=True)
class Mlp:
    """Plain feed-forward: down(activation(up(x)))."""

    intermediate: int
    activation: str = "gelu"
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class XieluMlp(Mlp):
    """Plain feed-forward whose activation has learned parameters (xIELU, arXiv:2411.13010)."""

    parameters: tuple[float, float, float, float] | None = None
    """`layers.ffn.xielu.PARAMETERS`; None: the checkpoint has them as tensors."""


@dataclass(frozen=True, slots=True)
class Router:
    """Routing of tokens to experts.

    Scores are the function `score` (in `layers.moe.routers.base.SCORES`) of the router's logits,
    which a `softcap` bounds to (-softcap, softcap). The `top_k` highest are selected; the
    checkpoint's `correction` bias is added for the selection only. With `by_logits` it is logits
    that are compared. With groups, only the `top_groups` best of `num_groups` equal groups take
    part; a group's score is the sum of its `group_width` best (DeepSeek-V3, arXiv:2412.19437). The
    selected weights are divided by their `norm`-norm, at least `norm_floor`, and multiplied by
    `scale`. Softmax over the selected experts alone equals softmax over all with `norm=1`.

    With `factors`, each expert has a learned factor on its weights after that.

    Experts from `num_experts` on are `zero_experts`, which return the token unchanged. `kind` is a
    key of `layers.moe.routers.ROUTERS`; `parameters` are for kinds that need more.
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
    factors: bool = False
    softcap: float | None = None
    by_logits: bool = False
    kind: str = "top_k"
    parameters: tuple[tuple[str, Parameter], ...] = ()


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture of experts (Shazeer et al. 2017, arXiv:1701.06538).

    `shared` is a feed-forward for every token; `shared_gate` multiplies it by the sigmoid of a
    learned projection. Router weights apply to an expert's output, or to its input with
    `weigh_input`. Without `passes`, zero experts return zero here, since one shard of a split
    mixture passes tokens through for all. With `dealt`, only this rank's experts are present and
    the others return zero. With `width`, routed experts work on that many channels, projected from
    the stream and back.
    """

    router: Router
    expert: Glu | Mlp
    shared: Glu | Mlp | None = None
    shared_gate: bool = False
    weigh_input: bool = False
    passes: bool = True
    dealt: ExpertMap | None = None
    width: int | None = None
    first_number: int = 0
    """Number of the first expert in the checkpoint."""
    scale: float = 1.0
    """Factor on the sum of routed and shared experts."""

    def with_router(self, kind: str) -> Moe:
        """The mixture with a router of this kind."""
        return replace(self, router=replace(self.router, kind=kind))


@dataclass(frozen=True, slots=True)
class MegablocksExperts:
    """Ungated experts with softmax top-k routing, plus one shared bias (MegaBlocks, Gale et
    al. 2022, arXiv:2211.15841)."""

    num_experts: int
    top_k: int
    intermediate: int
    activation: str = "gelu"


@dataclass(frozen=True, slots=True)
class ShortcutMoe:
    """A feed-forward and, from the same input, a mixture of experts whose output joins the stream
    one layer later (LongCat-Flash, arXiv:2509.01322); for the style "shortcut"."""

    dense: Glu
    branch: Moe

    def with_router(self, kind: str) -> ShortcutMoe:
        """The layer with a router of this kind."""
        return replace(self, branch=self.branch.with_router(kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelMoe(ShortcutMoe):
    """A feed-forward and, beside it, a mixture of experts, whose outputs are normed by `norm` each
    and added. Experts and router read the stream through norms of their own; an expert's weights
    have a learned factor (Gemma 4); for the style "scaled_sandwich"."""

    norm: Norm


@dataclass(frozen=True, slots=True)
class ModalityMoe:
    """Experts for the tokens of texts, and others, with a router of their own, for the
    `spec.Decoder.vision_tokens` (ERNIE 4.5-VL). What `text` shares is for every token. The roles of
    `vision` begin with "vision_"; the style is "by_modality"."""

    text: Moe
    vision: Moe

    def with_router(self, kind: str) -> ModalityMoe:
        """The layer with two routers of this kind."""
        return ModalityMoe(self.text.with_router(kind), self.vision.with_router(kind))
