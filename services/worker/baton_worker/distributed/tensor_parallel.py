"""Tensor parallelism: wraps the layers of one rank's shard so that all ranks compute the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from baton_worker.distributed.communicator import Communicator
from baton_worker.distributed.shard_spec import Shard
from baton_worker.layers.attention.gqa import Attention
from baton_worker.layers.embedding import Table
from baton_worker.layers.ffn.sparse_glu import SparseGlu
from baton_worker.layers.layer import Bare
from baton_worker.layers.moe.shortcut import ShortcutMoe
from baton_worker.layers.norm import RmsNorm
from baton_worker.layers.ssm.gated_norm import GatedNorm
from baton_worker.layers.ssm.lightning_attention import LinearAttention
from baton_worker.layers.ssm.mamba import Mamba
from baton_worker.layers.ssm.selective_state_space import SelectiveStateSpace
from baton_worker.models.decoder import Model


class AllReduced(Bare):
    """A mixer or a feed-forward whose output is summed over ranks."""

    def __init__(self, part: nn.Module, ranks: Communicator) -> None:
        super().__init__()
        self.part, self._ranks = part, ranks

    def forward(self, *arguments: Any) -> Tensor:
        """Run the shard. The last argument is the residual, [T, hidden]: only rank 0 adds it."""
        *rest, residual = arguments
        out: Tensor = self.part(*rest, residual if self._ranks.rank == 0 else None)
        return self._ranks.all_reduce(out)


class SharedRows(Bare):
    """A row-sharded embedding table."""

    def __init__(self, table: Table, first: int, num_rows: int, ranks: Communicator) -> None:
        super().__init__()
        self.table, self._ranks = table, ranks
        self._first, self._num_rows = first, num_rows

    def forward(self, numbers: Tensor) -> Tensor:
        """int64 [T] to [T, width]: one rank has the row, all others contribute zeros to the sum."""
        here = numbers - self._first
        elsewhere = (here < 0) | (here >= self._num_rows)
        rows: Tensor = self.table(here.masked_fill(elsewhere, 0))
        return self._ranks.all_reduce(rows.masked_fill(elsewhere[:, None], 0))


class AllGathered(Bare):
    """A row-sharded language head; rows beyond the vocabulary are padding."""

    def __init__(self, head: nn.Module, vocab: int, ranks: Communicator) -> None:
        super().__init__()
        self.head, self._vocab, self._ranks = head, vocab, ranks

    def forward(self, x: Tensor) -> Tensor:
        """[R, hidden] to float32 logits [R, vocab]."""
        return torch.cat(self._ranks.all_gather(self.head(x)), dim=-1)[:, : self._vocab]


class WideRms(Bare):
    """RMS normalization over the channels of all ranks."""

    def __init__(self, eps: float, ranks: Communicator) -> None:
        super().__init__()
        self._eps, self._ranks = eps, ranks

    def forward(self, x: Tensor) -> Tensor:
        """float32 [..., local channels] to the same shape."""
        squares = self._ranks.all_reduce(x.square().sum(-1, keepdim=True))
        return x * torch.rsqrt(squares / (x.shape[-1] * self._ranks.size) + self._eps)


class WideNorm(Bare):
    """RMS norm over the heads of all ranks; each rank holds the weight of its own heads.

    Replicated heads count equally in the numerator and the denominator.
    """

    def __init__(self, norm: RmsNorm, ranks: Communicator) -> None:
        super().__init__()
        self.norm, self._rms = norm, WideRms(norm.eps, ranks)

    def forward(self, x: Tensor) -> Tensor:
        """[T, local width] to the same shape and dtype."""
        wide: Tensor = self._rms(x.float())
        weight = self.norm.weight
        return (wide if weight is None else wide * weight).to(x.dtype)


def shard_modules(model: Model, vocab: int, ranks: Communicator) -> None:
    """Wrap a model built from a shard's spec to compute the whole one of `vocab` tokens."""
    for block in model.blocks:
        for name in ("mixer", "ffn"):
            _sum(block, name, ranks)
    for module in list(model.modules()):
        if isinstance(module, Attention) and module.norms_full_width:
            for name in ("query_norm", "key_norm"):
                if (norm := getattr(module, name)) is not None:
                    setattr(module, name, WideNorm(norm, ranks))
        elif isinstance(module, LinearAttention):
            assert isinstance(module.norm, RmsNorm)
            module.norm = WideNorm(module.norm, ranks)
        elif isinstance(module, SparseGlu):
            module.add_up, module.num_parts = ranks.all_reduce, ranks.size
        elif isinstance(module, GatedNorm) and module.settings.cut:
            module.rms = WideRms(module.settings.eps, ranks)
        elif isinstance(module, Mamba | SelectiveStateSpace):
            module.select = AllReduced(module.select, ranks)
    if model.embedding is not None:
        table: nn.Module = model.embedding.tokens
        assert isinstance(table, Table) and table.weight is not None
        num_rows = table.weight.shape[0]
        first = Shard(ranks.rank, ranks.size).first(num_rows, vocab)
        model.embedding.register_module("tokens", SharedRows(table, first, num_rows, ranks))
    if model.head is not None:
        model.register_module("head", AllGathered(model.head, vocab, ranks))


def _sum(block: nn.Module, name: str, ranks: Communicator) -> None:
    part = getattr(block, name)
    if isinstance(part, ShortcutMoe):
        # Its two halves are normed or added to the residual stream one by one.
        _sum(part, "dense", ranks)
        _sum(part, "branch", ranks)
    elif part is not None:
        setattr(block, name, AllReduced(part, ranks))
