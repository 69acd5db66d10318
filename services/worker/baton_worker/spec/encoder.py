"""Encoders, vision towers and pairs of towers, as data."""

from __future__ import annotations

from dataclasses import dataclass

from baton_worker.spec.decoder import Decoder
from baton_worker.spec.ffn import Mlp
from baton_worker.spec.norm import Norm


@dataclass(frozen=True, slots=True)
class Dense:
    """One layer of a head over pooled states: norm(activation(W x + b)).

    `name` is the checkpoint's; `activation` a key of `layers.pooler_head.ACTIVATIONS`.
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
    """A bidirectional stack: no cache, no next token.

    Its mixers are `Attention`; a `window` extends to both sides. Tokens, positions and
    `token_types` rows for the first and second text of a pair are added, then normed by
    `embedding_norm`. `classifier` scores the "first" token's state or the "mean", if the checkpoint
    has it. The first `bare_layers` layers have no norm before their mixer.
    """

    token_types: int = 0
    embedding_norm: Norm | None = None
    classifier: tuple[Dense, ...] = ()
    classify_from: str = "first"
    bare_layers: int = 0


@dataclass(frozen=True, slots=True)
class Patches:
    """Patch embedding: projected patches of `size` x `size` pixels (ViT, Dosovitskiy et al. 2020,
    arXiv:2010.11929) with learned positions.

    Images have `image` x `image` pixels and three channels; an incomplete patch at the right or
    bottom is dropped. A patch of `frames` frames has as many pixels in time. `class_token` prepends
    one learned vector, whose row of the positions is `class_row`, the first or the last (-1).
    `positions` is how images of another size get theirs, a key of
    `layers.vision.grid_positions.KINDS`; with "none" there are none. Projected patches are normed
    by `norm` before their positions are added.

    In a checkpoint with `stored` "batched", the class token and the positions have axes for a
    batch, as timm has them, and with "class_row" the class token has; with "grid", the positions
    have axes for rows and columns, and with "batched_grid" all three; with "axes" there are `table`
    positions of columns, then as many of rows. With `flat`, the projection
    is a matrix and no convolution, of patches [size, size, 3] with `channels_last`.
    """

    image: int
    size: int
    bias: bool = False
    class_token: bool = False
    positions: str = "exact"
    frames: int = 1
    stored: str = "rows"
    flat: bool = False
    class_row: int = 0
    norm: Norm | None = None
    channels_last: bool = False
    spare_rows: int = 0
    """Rows of the positions that are before those of vectors, and of none."""
    class_copies: int = 1
    """How often the class token, with its position, is before the patches."""
    registers: int = 0
    """Learned vectors without positions before the patches, beside no class token."""
    table: int = 0
    """Side of the grid of positions, if it is not that of an image."""
    given: bool = False
    """Whether states of another encoder come in the place of patches to project."""

    @property
    def count(self) -> int:
        """Number of vectors that have a position."""
        squares: int = (self.table or self.image // self.size) ** 2
        return squares + self.class_token

    @property
    def leading(self) -> int:
        """Number of vectors before the patches."""
        return self.class_token * self.class_copies + self.registers


@dataclass(frozen=True, slots=True)
class AttentionPool:
    """Attention pooling with one learned query over an image's states, then x + ffn(norm(x)) (Zhai
    et al. 2022, arXiv:2106.04560)."""

    num_heads: int
    norm: Norm
    ffn: Mlp
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision(Encoder):
    """A stack over image patches. The image's vector is the output of `pool`, or the first state,
    projected."""

    patches: Patches
    pool: AttentionPool | None = None
    projection: Dense | None = None

    @property
    def out_hidden(self) -> int:
        """Channels of the last states."""
        return self.hidden


@dataclass(frozen=True, slots=True)
class Padding:
    """Texts shorter than `length` are padded with token `id`, and the padding is attended to."""

    length: int
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DualEncoder(Encoder):
    """A text stack (this `Encoder`) and an image stack in a shared vector space (CLIP, Radford et
    al. 2021, arXiv:2103.00020).

    A text's vector is the projected state of its first `end` token; of its highest token id if
    `end` is -1; of its last token if there is none. `max_length` is the longer of both inputs,
    `text_length` that of texts.
    """

    vision: Vision
    text_length: int
    projection: Dense
    end: int | None = None
    padding: Padding | None = None
