"""A causal language model, as data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from baton_worker.spec.attention import (
    Attention,
    CrossAttention,
    LatentAttention,
)
from baton_worker.spec.checkpoint import TensorLayout
from baton_worker.spec.embedding import Embedding, Head, LayerEmbeddings
from baton_worker.spec.ffn import (
    Glu,
    MegablocksExperts,
    Mlp,
    ModalityMoe,
    Moe,
    SharedGlu,
    ShortcutMoe,
)
from baton_worker.spec.norm import Norm, TimeCondition
from baton_worker.spec.state_space import (
    Recurrent,
)

if TYPE_CHECKING:
    from baton_worker.spec import Tower


@dataclass(frozen=True, slots=True)
class Skip:
    """Before layer `to`, mix in the input of layer `source`: weight * old + (1 - weight) * x."""

    source: int
    to: int
    weight: float


@dataclass(frozen=True, slots=True)
class Stage:
    """The layers that one stage of a pipeline has: from `start` on, up to but not including `end`
    of `num_layers`. In its spec all other layers have no mixer and no ffn, so that a layer has the
    same number in every stage."""

    start: int
    end: int
    num_layers: int

    @property
    def is_first(self) -> bool:
        """Whether it begins with the embedding."""
        return self.start == 0

    @property
    def is_last(self) -> bool:
        """Whether the final norm and the head follow."""
        return self.end == self.num_layers

    @property
    def layers(self) -> range:
        """The numbers of its layers."""
        return range(self.start, self.end)


@dataclass(frozen=True, slots=True)
class Blend:
    """Weights (old, new) of the normed stream and of a half's output in the style "blended", for
    attention layers, linear attention layers and feed-forwards. In the style "beside", factors
    (input, output) of a half."""

    attention: tuple[float, float] = (1.0, 1.0)
    linear: tuple[float, float] = (1.0, 1.0)
    ffn: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True, slots=True)
class AltUp:
    """Alternating updates (Baykal et al. 2023, arXiv:2301.13310) as Gemma 3n has them: a token has
    `num_streams` states. A layer predicts all of them from all, runs the `active` one, and corrects
    all by what has changed in it; beside attention it has a low-rank residual of `rank` channels
    (LAuReL, arXiv:2411.07501)."""

    num_streams: int
    active: int
    rank: int
    scaled: bool = True
    """Whether the input of the gate of a layer's own embedding has learned factors."""


Mixer: TypeAlias = Attention | LatentAttention | CrossAttention | Recurrent
Ffn: TypeAlias = Glu | SharedGlu | Mlp | Moe | MegablocksExperts | ShortcutMoe | ModalityMoe
ROUTED = (Moe, ShortcutMoe, ModalityMoe)
"""Feed-forwards whose router may be of another kind than the checkpoint implies."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """A causal language model: embedding, one (mixer, ffn) pair per layer, norm and head.

    If a layer's mixer or ffn is None, it lacks that half of the residual block, norm included.
    `style`, a key of `models.block.STYLES`, places the norms around the residual stream; the output
    of a half is multiplied by `residual_scale`.
    """

    hidden: int
    vocab: int
    layers: tuple[tuple[Mixer | None, Ffn | None], ...]
    norm: Norm
    head: Head
    style: str = "pre"
    max_length: int = 0
    """Context length of the checkpoint in tokens, prompt and completion together."""
    embedding: Embedding = field(default_factory=Embedding)
    residual_scale: float = 1.0
    final_norm: bool = True
    blend: Blend = Blend()
    skips: tuple[Skip, ...] = ()
    post_offsets: tuple[float, float] | None = None
    """The weight offset of the norms after a mixer and after an ffn, if not that of `norm`."""
    tensors: TensorLayout = field(default_factory=TensorLayout)
    """Tensor names and packing of the checkpoint."""
    tower: Tower | None = None
    """The encoder of what is in the prompt beside text; None for text alone."""
    vision_tokens: tuple[int, ...] = ()
    """Tokens that the vision experts of a `ModalityMoe` take."""
    altup: AltUp | None = None
    """Streams of the style "altup"."""
    layer_embeddings: LayerEmbeddings | None = None
    """Embeddings that each layer has of its own."""
    condition: TimeCondition | None = None
    """The condition that scales the norms of feed-forwards in the style "conditioned"."""
    suppressed_tokens: tuple[int, ...] = ()
    """Tokens that stand in prompts alone: their logits are the lowest of float32."""
    stage: Stage | None = None
    """The layers of this stage, in a pipeline of several stages."""
    alignment_filter: int = 0
    """States over which the attention of `CrossAttention.alignment_heads` is smoothed, an odd
    number; 0: there are no such heads."""

    @property
    def position_axes(self) -> int:
        """Number of positions of each token: several if a rope has sections."""
        ropes = (getattr(mixer, "rope", None) for mixer, _ in self.layers)
        sections = (rope.sections for rope in ropes if rope is not None)
        return max((len(some.sizes) for some in sections if some is not None), default=1)

    def with_router(self, kind: str) -> Decoder:
        """The spec with all routers of this kind; checkpoints imply `top_k`."""
        if kind == "top_k":
            return self
        layers = tuple(
            (mixer, ffn.with_router(kind) if isinstance(ffn, ROUTED) else ffn)
            for mixer, ffn in self.layers
        )
        return replace(self, layers=layers)
