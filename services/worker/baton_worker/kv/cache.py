"""Page tensors: where the keys and values of every sequence live."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker.kernels.pages import Codes
from baton_worker.kv.layout import page_shapes
from baton_worker.models.spec import Decoder


class KVCache:
    """A pool of pages per layer (paged attention, Kwon et al. 2023, arXiv:2309.06180).

    `layers[i]` is [num_pages, page_size, 2, num_kv_heads, head_dim]; index 0 of the third axis is
    the key, 1 the value. A slot is page * page_size + offset. Who owns which page is the
    scheduler's business; nothing here knows requests.

    With `codes` pages are uint8 and their last axis is `kernels.pages.row_width`: whoever copies
    pages copies bytes.
    """

    def __init__(
        self,
        spec: Decoder,
        num_pages: int,
        page_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        codes: Codes | None = None,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.codes = codes
        # Zeros, not empty: attention reads whole pages and masks what is not written yet, and a
        # masked NaN would still spread.
        self.layers: list[Tensor] = [
            torch.zeros((num_pages, *shape), dtype=torch.uint8 if codes else dtype, device=device)
            for shape in page_shapes(spec, page_size, codes)
        ]

    def copy(self, sources: list[int], targets: list[int]) -> None:
        """Copy whole pages in all layers, pairwise. No page is both a source and a target."""
        for layer in self.layers:
            layer[targets] = layer[sources]

    def key(self, layer: int) -> Tensor:
        """View of the keys of a layer: [num_pages, page_size, num_kv_heads, last axis]."""
        return self.layers[layer][:, :, 0]

    def value(self, layer: int) -> Tensor:
        """View of the values of a layer: [num_pages, page_size, num_kv_heads, last axis]."""
        return self.layers[layer][:, :, 1]
