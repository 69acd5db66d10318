"""The part that a rank has of an adapter: A is cut where its layer's columns are, B where its rows
are.

A layer whose rows are cut gets its rows of B; one whose columns are cut gets its columns of A, and
its products are summed over ranks with those of the base.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from baton_worker.distributed.shard_spec import Shard
from baton_worker.distributed.shard_weights import Parts
from baton_worker.kernels.lora import LoraPair

Shape = tuple[int, int]


class LoraShards:
    """Cuts the products of an adapter like the weights of the base.

    Args:
        parts: what this rank's layers are parts of.
    """

    def __init__(self, parts: Parts) -> None:
        self._share: Shard = parts.share
        self._ranks = parts.ranks
        self.whole: dict[str, Shape] = {}
        """Module -> rows and columns of its whole weight."""
        for layer in parts.whole:
            for name, tensor in layer.weight_targets():
                if name.endswith(".weight") and tensor.ndim == 2:
                    self.whole[name.removesuffix(".weight")] = (tensor.shape[0], tensor.shape[1])

    def cut(self, module: str, pair: LoraPair, shape: Shape) -> LoraPair:
        """This rank's part of a product, for a weight of the shape `shape` here; A and B as in
        `LoraPair`."""
        rows, columns = self.whole[module]
        a, b = self._part(pair.a, shape[1], columns), self._part(pair.b, shape[0], rows)
        norms = pair.magnitude
        norms = None if norms is None else self._part(norms[None], shape[0], rows)[0]
        return LoraPair(a, b, pair.scale, norms)

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks; all of them ask."""
        assert self._ranks is not None, "a shard that is loaded has its ranks"
        return self._ranks.all_reduce(tensor)

    def cut_table(self, module: str, pair: LoraPair, shape: Shape) -> LoraPair:
        """The same for an embedding table, with A as [vocab, rank]."""
        a = self._part(pair.a.T, shape[0], self.whole[module][0]).T
        return LoraPair(a.contiguous(), pair.b, pair.scale)

    def _part(self, tensor: Tensor, mine: int, whole: int) -> Tensor:
        """Columns of this rank, with zeros beyond the end."""
        if mine == whole:
            return tensor
        first = self._share.first(mine, whole)
        count = min(mine, whole - first)
        return F.pad(tensor[:, first : first + count], (0, mine - count)).contiguous()
