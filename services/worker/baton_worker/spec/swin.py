"""Vision stacks in stages of ever fewer and wider patches, as data."""

from __future__ import annotations

from dataclasses import dataclass

from baton_worker.spec.encoder import Vision


@dataclass(frozen=True, slots=True, kw_only=True)
class Swin(Vision):
    """Attention within windows of `window` x `window` patches, shifted by half of that in every
    other layer, with a learned bias for each distance (Swin, Liu et al. 2021, arXiv:2103.14030).

    Stage i has `depths[i]` layers with `num_heads[i]` heads; between stages 2 x 2 patches become
    one of twice the width, the first of which is `hidden`. A feed-forward is `ratio` times as wide.
    Tensors are under `name`; there are no `layers`.
    """

    name: str
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    window: int
    ratio: float
    activation: str = "gelu"
    bias: bool = True
    """Of the q, k and v projections."""

    @property
    def out_hidden(self) -> int:
        """Channels of the last states."""
        return self.hidden << (len(self.depths) - 1)
