"""The destination of each checkpoint tensor on a rank that holds a shard of the model.

Derived, not declared: the layers of the whole model, on the meta device, give the checkpoint
shapes, and those of the shard the local shapes. The axis in which they differ is the sharded one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from baton_worker.distributed.communicator import Communicator
from baton_worker.distributed.shard_spec import Shard
from baton_worker.kernels.weight import QuantizedWeight
from baton_worker.layers.layer import Layer

Destination: TypeAlias = "Tensor | WeightShard"
"""Destination of a checkpoint tensor: has the shape of the whole tensor, and `copy_`."""


class WeightShard:
    """A destination that keeps its shard of a tensor. The loader sees the whole shape.

    Args:
        whole: a tensor with the checkpoint's shape.
        target: the tensor to fill; None if only other ranks need it.
        share: the shard.
        added: whether it is a summand of an all-reduce: then rank 0 holds it, other ranks zeros.
    """

    def __init__(self, whole: Tensor, target: Tensor | None, share: Shard, added: bool) -> None:
        self.shape = whole.shape
        self._target, self._share, self._added = target, share, added
        self._axis = None if target is None else _cut_axis(target.shape, whole.shape)

    def copy_(self, tensor: Tensor) -> None:
        """Fill the target from the whole tensor, with zeros beyond its end."""
        if self._target is None:
            return
        if self._added and self._share.rank:
            self._target.zero_()
        elif self._axis is None:
            self._target.copy_(tensor)
        else:
            first, count = self._range(self._axis)
            self._target.narrow(self._axis, 0, count).copy_(tensor.narrow(self._axis, first, count))
            rest = self._target.shape[self._axis] - count
            self._target.narrow(self._axis, count, rest).zero_()

    def of(self, weight: QuantizedWeight, name: str) -> QuantizedWeight:
        """The shard of a quantised weight, padded like `copy_`.

        Raises:
            SettingsError: it is not aligned to the groups of the weight.
        """
        if self._target is None or self._axis is None:
            return weight
        first, count = self._range(self._axis)
        if self._axis == 0:
            return weight[first : first + count].padded(self._target.shape[0] - count)
        multiple = weight.column_multiple
        if first % multiple or count % multiple:
            raise self._share.refusal(
                f"{name} is stored in blocks of {multiple} columns, and a part has {count}"
            )
        return weight.columns(first, count)

    def check(self, name: str, multiple: int) -> None:
        """Refuse a weight whose shard is no longer a multiple of the quantisation group of
        `multiple` columns.

        Raises:
            SettingsError: see above.
        """
        if self._target is None or self._axis != 1 or len(self.shape) != 2:
            return
        mine = self._target.shape[1]
        if self.shape[1] % multiple == 0 and mine % multiple:
            raise self._share.refusal(
                f"{name} is rounded in groups of {multiple} columns, and a part has {mine}"
            )

    @property
    def elsewhere(self) -> bool:
        """Whether only other ranks need the tensor."""
        return self._target is None

    @property
    def cuts_columns(self) -> bool:
        """Whether each rank holds some columns of a matrix: the products are summed over ranks."""
        return self._axis == 1

    def _range(self, axis: int) -> tuple[int, int]:
        """Start and length of the shard along an axis of the whole."""
        assert self._target is not None
        mine, whole = self._target.shape[axis], self.shape[axis]
        first = self._share.first(mine, whole)
        return first, min(mine, whole - first)


@dataclass(frozen=True, slots=True)
class Parts:
    """Arguments of a loader for a shard."""

    whole: Sequence[Layer]
    """The layers of the whole model, on the meta device."""
    share: Shard
    multiple: int = 1
    """Columns per group of a later quantisation."""
    ranks: Communicator | None = None
    """The ranks that hold the other parts; None without communication."""


def slices(layers: Sequence[Layer], parts: Parts) -> dict[str, WeightShard]:
    """Destinations by checkpoint tensor name; `layers` are the layers of the shard.

    Raises:
        SettingsError: a weight that would be quantised on one process cannot be on several.
    """
    shards, share = dict[str, WeightShard](), parts.share
    for mine, whole in zip(layers, parts.whole, strict=True):
        pairs = list(_pairs(mine, whole))
        weights = {
            name: WeightShard(tensor, target, share, False) for name, tensor, target in pairs
        }
        for name, tensor, target in pairs:
            # A bias beside a row-parallel matrix would be added once per rank.
            module, _, suffix = name.rpartition(".")
            beside = weights.get(f"{module}.weight") if suffix == "bias" else None
            if beside is not None and beside.cuts_columns:
                weights[name] = WeightShard(tensor, target, share, True)
        shards |= weights
    for name, destination in shards.items():
        destination.check(name, parts.multiple)
    return shards


def passed_over(layers: Sequence[Layer]) -> dict[str, Destination]:
    """Destinations of tensors that other ranks alone need, by checkpoint tensor name; `layers` are
    those ranks' layers, on the meta device."""
    tensors = (pair for layer in layers for pair in layer.weight_targets())
    return {name: WeightShard(tensor, None, Shard(0, 1), False) for name, tensor in tensors}


def sliced(
    wanted: Mapping[str, Destination], name: str, weight: QuantizedWeight
) -> QuantizedWeight:
    """The shard of a quantised weight for the destination of a name, if that is sharded."""
    destination = wanted.get(name)
    return destination.of(weight, name) if isinstance(destination, WeightShard) else weight


def _pairs(layer: Layer, whole: Layer) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Name, whole tensor, own tensor. Own is None for per-head tensors of other ranks' heads."""
    targets = dict(layer.weight_targets())
    for name, tensor in whole.weight_targets():
        yield name, tensor, targets.get(name)


def _cut_axis(mine: torch.Size, whole: torch.Size) -> int | None:
    """The axis in which the shard differs from the whole."""
    axes = [axis for axis, (a, b) in enumerate(zip(mine, whole, strict=True)) if a != b]
    assert len(axes) <= 1, f"{list(mine)} of {list(whole)} is cut in more than one axis"
    return axes[0] if axes else None
