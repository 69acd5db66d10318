"""Encoders, vision towers and pairs of towers, as data."""

from __future__ import annotations

from dataclasses import dataclass

from baton_worker.spec.decoder import Decoder
from baton_worker.spec.ffn import Mlp
from baton_worker.spec.norm import Norm


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
class DualEncoder(Encoder):
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
