"""Pages of cross-attention layers: KV of encoder states, which are no tokens of a sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker.kernels.page_layout import Layout
from baton_worker.spec import CrossAttention, Decoder


class CrossPages:
    """A pool beside that of tokens, numbered apart; `engine.multimodal.cross_kv` assigns its pages
    to media items. It has no pages until it grows.

    `layers[i]`, of each layer with cross-attention, is [num_pages, page_size, 2, num_kv_heads,
    head_dim].
    """

    def __init__(
        self,
        spec: Decoder,
        page_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        layout: Layout,
    ) -> None:
        self._size, self._layout = page_size, layout
        self.layers: dict[int, Tensor] = {
            layer: self._pages(0, mixer, dtype, device)
            for layer, (mixer, _) in enumerate(spec.layers)
            if isinstance(mixer, CrossAttention)
        }

    def grow(self, num_pages: int) -> None:
        """Have at least so many pages."""
        for layer, old in self.layers.items():
            if len(old) < num_pages:
                new = self._layout.zeros(
                    (num_pages, *old.shape[1:]), dtype=old.dtype, device=old.device
                )
                new[: len(old)] = old
                self.layers[layer] = new

    def _pages(
        self, count: int, mixer: CrossAttention, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        shape = (count, self._size, 2, mixer.num_kv_heads, mixer.head_dim)
        return self._layout.zeros(shape, dtype=dtype, device=device)


def bytes_per_cross_page(spec: Decoder, page_size: int, dtype: torch.dtype) -> int:
    """Bytes of one page of states over all cross-attention layers; 0 if there are none."""
    mixers = (mixer for mixer, _ in spec.layers if isinstance(mixer, CrossAttention))
    return sum(2 * page_size * m.num_kv_heads * m.head_dim * dtype.itemsize for m in mixers)
