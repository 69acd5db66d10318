"""The form in which keys and values travel: token after token, whatever the pages look like."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton_worker.kv.cache import KVCache

BLOCK_BYTES = 4 * 1024 * 1024
"""Most bytes in one message, about."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Tokens start .. end - 1 of one layer."""

    layer: int
    start: int
    end: int


def token_bytes(cache: KVCache, layer: int) -> int:
    """Bytes that one token takes in one layer."""
    pages = cache.layers[layer]
    return pages[0, 0].numel() * pages.element_size()


def dtype_name(cache: KVCache, layer: int) -> str:
    """How the numbers of a layer are stored: the two sides must agree."""
    if cache.codes is not None:
        return cache.codes.name
    return str(cache.layers[layer].dtype).removeprefix("torch.")


def extents(cache: KVCache, start: int, end: int) -> list[Extent]:
    """All layers of tokens start .. end - 1, cut so that each piece fits into one message."""
    cut = []
    for layer in range(len(cache.layers)):
        most = max(1, BLOCK_BYTES // max(1, token_bytes(cache, layer)))
        cut += [Extent(layer, at, min(at + most, end)) for at in range(start, end, most)]
    return cut


def read(cache: KVCache, pages: list[int], extent: Extent) -> bytes:
    """What the pages of a sequence, from its first token on, hold of these tokens."""
    layer = cache.layers[extent.layer]
    tokens = layer.view(-1, *layer.shape[2:])[_slots(cache, pages, extent)]
    return bytes(tokens.contiguous().view(torch.uint8).cpu().numpy().data)


def write(cache: KVCache, pages: list[int], extent: Extent, data: bytes) -> None:
    """Put into the pages of a sequence what `read` gave elsewhere.

    Raises:
        ValueError: the data has not the size of these tokens in this cache.
    """
    layer = cache.layers[extent.layer]
    if len(data) != (extent.end - extent.start) * token_bytes(cache, extent.layer):
        raise ValueError(f"{len(data)} bytes are not {extent.end - extent.start} tokens")
    numbers = torch.frombuffer(bytearray(data), dtype=layer.dtype)
    slots = _slots(cache, pages, extent)
    flat = layer.view(-1, *layer.shape[2:])
    flat[slots] = numbers.view(-1, *layer.shape[2:]).to(layer.device)
    if layer.is_cuda:  # The next step may run before the copy otherwise.
        torch.cuda.synchronize(layer.device)


def _slots(cache: KVCache, pages: list[int], extent: Extent) -> Tensor:
    size = cache.page_size
    first, last = extent.start // size, -(-extent.end // size)
    device = cache.layers[extent.layer].device
    table = torch.tensor(pages[first:last], device=device)
    whole = (table[:, None] * size + torch.arange(size, device=device)).flatten()
    return whole[extent.start - first * size : extent.end - first * size]
