"""Low-rank adapters (LoRA, arXiv:2106.09685): the products that a layer adds for each token.

A step mixes tokens with several adapters and with none; the kernels of all layers read
`TokenAdapters`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MAX_RANK = 512
"""Most rows of A; mirrored in lora.cpp."""


class LoraPair(NamedTuple):
    """The product that an adapter adds to one part of a layer: x to scale * (x A^T) B."""

    a: Tensor
    """[rank, in_features]"""
    b: Tensor
    """[rank, out_features]: the transpose of what a checkpoint stores."""
    scale: float
    magnitude: Tensor | None = None
    """Norms of the rows of the adapted weight, float32 [out_features], if they are decomposed; see
    `magnitudes`."""


class TokenAdapters:
    """Adapter of each token of the current step, shared by all layers of a model.

    Args:
        max_loras: adapters that a step can mix; they are numbered from 0.
        max_tokens: most tokens of a step.
        device: of the model.
    """

    def __init__(self, max_loras: int, max_tokens: int, device: torch.device) -> None:
        self.max_loras = max_loras
        self.slots = torch.full((max_tokens,), -1, dtype=torch.int32, device=device)
        """int32 [max_tokens]: number of the adapter of each token, -1 for none. It stays where it
        is: kernels and captured steps point to it."""
        self.host = np.zeros(0, np.int64)
        """The same on the host, of the tokens of this step."""
        self._written = 0
        """Tokens from the first on that may have a number in `slots`: all behind them have none."""
        self.eager = set[int]()
        """Numbers of adapters that change more than products of linear layers: their steps run
        eagerly, since the host looks up which rows they have."""

    def write(self, slots: npt.NDArray[np.int64]) -> None:
        """Set the adapters of the next step's tokens, int64 [T]; -1 for none."""
        self.host = slots
        if slots.max(initial=-1) < 0:
            # Steps without adapters follow one another: then nothing changes on the device.
            if self._written:
                self.slots[: self._written] = -1
            self._written = 0
            return
        self.slots[: len(slots)] = torch.from_numpy(slots)
        self._written = max(self._written, len(slots))

    @property
    def needs_eager(self) -> bool:
        """Whether a token of this step has an adapter that is `eager`."""
        return bool(self.eager) and not self.eager.isdisjoint(self.host.tolist())

    def rows(self, count: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
        """The number of each adapter that is `eager`, and its rows of the first `count` tokens:
        int64 [n]."""
        for slot in sorted(self.eager):
            matching = np.flatnonzero(self.host[:count] == slot)
            if len(matching):
                yield slot, torch.from_numpy(matching).to(device)


class LoraKernel(Protocol):
    """The products of one layer, for every adapter that is on the device."""

    def put(self, slot: int, pairs: Sequence[LoraPair | None]) -> None:
        """Put an adapter into a slot: a pair for each part of the layer, in the dtype of the
        layer's inputs, or None for a part without one."""
        ...

    def add(self, x: Tensor, out: Tensor) -> Tensor:
        """Add to `out` [T, out_features] in place, for x [T, in_features]; returns it."""
        ...

    def delta(self, x: Tensor) -> Tensor:
        """The sums to add: float32 [T, out_features]. Rows without an adapter are undefined."""
        ...


class PlainLora:
    """The twin, on any device: one product for all tokens of an adapter."""

    def __init__(self, parts: Sequence[int], adapters: TokenAdapters) -> None:
        self._parts, self._adapters = list(parts), adapters
        self._pairs: list[Sequence[LoraPair | None]] = [()] * adapters.max_loras

    def put(self, slot: int, pairs: Sequence[LoraPair | None]) -> None:
        """See `LoraKernel`."""
        self._pairs[slot] = pairs

    def add(self, x: Tensor, out: Tensor) -> Tensor:
        """See `LoraKernel`."""
        for rows, delta in self._deltas(x):
            out[rows] = (out[rows].float() + delta).to(out.dtype)
        return out

    def delta(self, x: Tensor) -> Tensor:
        """See `LoraKernel`."""
        out = x.new_zeros((len(x), sum(self._parts)), dtype=torch.float32)
        for rows, delta in self._deltas(x):
            out[rows] = delta
        return out

    def _deltas(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The rows of each adapter, and what it adds to them."""
        slots = self._adapters.host[: len(x)]
        deltas = []
        for slot in np.unique(slots[slots >= 0]).tolist():
            rows = torch.from_numpy(np.flatnonzero(slots == slot)).to(x.device)
            deltas.append((rows, self._delta(x[rows].float(), self._pairs[slot])))
        return deltas

    def _delta(self, x: Tensor, pairs: Sequence[LoraPair | None]) -> Tensor:
        columns = [
            x.new_zeros((len(x), size))
            if pair is None
            else (x @ pair.a.float().T * pair.scale) @ pair.b.float()
            for size, pair in zip(self._parts, pairs, strict=True)
        ]
        return torch.cat(columns, -1)


def lora_kernel(
    in_features: int,
    parts: Sequence[int],
    adapters: TokenAdapters,
    like: Tensor,
    out_dtype: torch.dtype | None = None,
) -> LoraKernel:
    """The kernel of a layer whose parts have so many rows each; `like` is a tensor on the device
    and of the dtype of its inputs, `out_dtype` that of its outputs if it is another."""
    from baton_worker.kernels.cpu.lora import CpuLora

    if CpuLora.refuses(like.dtype, like.device) is None:
        return CpuLora(in_features, parts, adapters, like.dtype, out_dtype or like.dtype)
    return PlainLora(parts, adapters)
