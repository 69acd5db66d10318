"""Low-rank sums of absorbed up-projections (latent attention), head by head."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.lora import LoraPair, TokenAdapters

Product = Callable[[Tensor], Tensor]


class LoraUpProjection:
    """The products that adapters add to the up-projection of latents, W = B A per head with rows
    for keys and for values: queries go into the latent space by (q B_k) A, and what was seen comes
    out of it by (c A^T) B_v^T. On a CPU a token's bits do not depend on the others.

    Args:
        adapters: which adapter each token has.
        nope_dim: rows of a head for its keys; the rest are for its values.
        num_heads: heads.
    """

    def __init__(self, adapters: TokenAdapters, num_heads: int, nope_dim: int) -> None:
        self._adapters, self._num_heads, self._nope_dim = adapters, num_heads, nope_dim
        self._products = dict[int, tuple[Product, Product]]()

    def put(self, slot: int, pairs: Sequence[LoraPair | None]) -> None:
        """See `LoraKernel.put`; there is one part."""
        self._products.pop(slot, None)
        [pair] = pairs
        if pair is not None:
            self._products[slot] = self._of(pair)

    def _of(self, pair: LoraPair) -> tuple[Product, Product]:
        """[n, heads, nope_dim] and [n, heads, kv_rank] to what is added for each."""
        heads = torch.unflatten(pair.b.T, 0, (self._num_heads, -1)) * pair.scale
        keys, values = heads[:, : self._nope_dim], heads[:, self._nope_dim :]
        narrow, widen = _product(pair.a), _product(pair.a.T)
        into = [_product(key.T) for key in keys]
        out = [_product(value) for value in values]

        def each(products: list[Product], x: Tensor) -> Tensor:
            parts = zip(products, x.unbind(1), strict=True)
            return torch.stack([product(part.contiguous()) for product, part in parts], 1)

        return lambda query: widen(each(into, query)), lambda seen: each(out, narrow(seen))

    def into_latents(self, query: Tensor, latents: Tensor) -> Tensor:
        """Add to latents [T, heads, kv_rank] for queries [T, heads, nope_dim]; returns them."""
        return self._add(0, query, latents)

    def out_of_latents(self, attended: Tensor, values: Tensor) -> Tensor:
        """Add to values [T, heads, value_dim] for [T, heads, kv_rank]; returns them."""
        return self._add(1, attended, values)

    def _add(self, side: int, x: Tensor, to: Tensor) -> Tensor:
        for slot, at in self._adapters.rows(len(x), x.device):
            if (products := self._products.get(slot)) is not None:
                to = to.index_copy(0, at, to[at] + products[side](x[at]))
        return to


def _product(weight: Tensor) -> Product:
    """x [..., in] to [..., out] for a weight [out, in]."""
    weight = weight.contiguous()
    if CpuLinear.refuses(weight) is not None:
        return lambda x: x @ weight.T
    kernel = CpuLinear(weight, None)
    return lambda x: kernel(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)
