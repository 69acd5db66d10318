"""An encoder of images whose tiles see one another, as data."""

from __future__ import annotations

from dataclasses import dataclass

from baton_worker.spec.encoder import Dense


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledTower:
    """The encoder of Llama 3.2 Vision (arXiv:2407.21783): patches of all tiles of an image go
    through `num_layers` layers and `num_global_layers` gated ones. The states after the layers
    `taps`, side by side behind the last ones, are projected to states that the decoder's
    cross-attention layers see (`spec.CrossAttention`).

    An image is always `most_tiles` tiles of `image` x `image` pixels, the last of which may be
    padding, with learned vectors by `shapes`, pairs (rows, columns) of tiles that an image may
    have; number 0 of their tables is of none. States of padding are seen by all others, as in
    training, and see no padding.
    """

    prefix: str
    """Of its tensors."""
    image: int
    patch: int
    hidden: int
    num_heads: int
    intermediate: int
    activation: str
    eps: float
    num_layers: int
    num_global_layers: int
    taps: tuple[int, ...]
    """By the number of the layer, from 0."""
    most_tiles: int
    shapes: tuple[tuple[int, int], ...]
    projector: Dense
    image_token: int

    @property
    def tile_states(self) -> int:
        """States of a tile: its patches, and a class token before them."""
        side = self.image // self.patch
        return side**2 + 1
