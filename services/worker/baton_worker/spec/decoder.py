"""A causal language model, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from baton_worker.spec.attention import (
    Attention,
    LatentAttention,
)
from baton_worker.spec.checkpoint import Fused, Stacked
from baton_worker.spec.embedding import Embedding, Head
from baton_worker.spec.ffn import Glu, MegablocksExperts, Mlp, Moe, ShortcutMoe
from baton_worker.spec.norm import Norm
from baton_worker.spec.state_space import (
    Recurrent,
)


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


Mixer: TypeAlias = Attention | LatentAttention | Recurrent
Ffn: TypeAlias = Glu | Mlp | Moe | MegablocksExperts | ShortcutMoe


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
    embedding: Embedding = field(default_factory=Embedding)
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
