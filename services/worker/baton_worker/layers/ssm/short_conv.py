"""The gated short convolution over pages of its inputs (LFM2, arXiv:2511.23404)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.attention import AttentionBatch
from baton_worker.kernels.recurrent import chains
from baton_worker.kernels.recurrent.convolution import (
    Activation,
    Before,
    Kernel,
    Places,
    Weights,
    choose,
)
from baton_worker.kernels.recurrent.ssm_states import Chains
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.invariant import SILU, product
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import Linear
from baton_worker.layers.mixer import Carrying
from baton_worker.layers.mlp import activation


@dataclass(frozen=True, slots=True)
class Earlier:
    """Slots of the tokens that precede each new token."""

    slots: Tensor
    """int64 [taps - 1, T]: slots of the token one before, two before, ..."""
    missing: Tensor | None
    """bool [taps - 1, T]: before the start of the sequence; None if all exist."""

    @classmethod
    def of(cls, batch: AttentionBatch, taps: int) -> Earlier:
        """Look the slots up in the block tables, on the host."""
        row, position = batch.flat()
        position = position - np.arange(1, taps)[:, None]
        missing, device = position < 0, batch.block_table.device
        at = torch.from_numpy(np.maximum(position, 0)).to(device)
        pages = batch.block_table[torch.from_numpy(row).to(device), at // batch.page_size].long()
        return cls(
            pages * batch.page_size + at % batch.page_size,
            torch.from_numpy(missing).to(device) if missing.any() else None,
        )


@dataclass(frozen=True, slots=True)
class Reach:
    """The receptive field of a convolution; plans a step like an attention backend."""

    taps: int
    on_device: bool = False
    """Whether the device looks the slots up."""
    launch_blocker: ClassVar[None] = None

    @property
    def capture_blocker(self) -> str | None:
        """See `attention.Backend`."""
        return None if self.on_device else "a convolution looks its earlier tokens up on the host"

    def plan(self, batch: AttentionBatch, call: Reach) -> Earlier | DeviceEarlier:
        """Look the slots up once for all layers with equally many taps."""
        assert batch.trees is None and batch.ranges is None, "every earlier token counts"
        return DeviceEarlier(batch, call.taps) if call.on_device else Earlier.of(batch, call.taps)


@dataclass(frozen=True, slots=True)
class DeviceEarlier:
    """See `attention.backend.DevicePlan`."""

    batch: AttentionBatch
    taps: int

    def compute(self) -> Earlier:
        """The slots of each token's predecessors."""
        _, earlier = found(self.batch, self.taps)
        return earlier


def found(batch: AttentionBatch, taps: int) -> tuple[Chains, Earlier]:
    """Computed on the device for a step: the pages of each row, and the slots before each token."""
    tokens = (len(batch.slot_mapping), max(batch.query_lens))
    rows = chains.Rows(batch.query_start_loc, batch.seq_lens, batch.block_table, *tokens)
    of_pages, earlier, missing = chains.find(rows, batch.page_size, taps)
    return of_pages, Earlier(earlier, missing)


class ShortConv(Carrying):
    """out(c * conv(b * x)), where b, c and x are projections of the input.

    The input of the convolution is written to pages like KV and no state is kept elsewhere, so
    neither chunk boundaries nor the batch changes a bit.
    """

    what = "A convolution"

    def __init__(self, settings: spec.ShortConv, hidden: int, context: BuildContext) -> None:
        super().__init__(context)
        self.call = self.backend = Reach(settings.taps, chains.runs(context.device, context.dtype))
        size, bias = settings.channels, settings.bias
        roles = ("conv_before", "conv_after", "conv_input")
        self.project = Linear(hidden, dict.fromkeys(roles, size), context, bias=bias)
        self.taps = Taps({"conv": size}, settings.taps, bias, context)
        self.output = Linear(size, {"conv_output": hidden}, context, bias=bias)

    def forward(
        self, x: Tensor, step: ForwardContext, pages: Tensor, residual: Tensor | None
    ) -> Tensor:
        """x [T, hidden] and this layer's pages to [T, hidden], plus `residual`.

        Raises:
            ModelError: the step has texts with bidirectional attention.
        """
        self.check(step)
        before, after, inner = self.project(x).chunk(3, dim=-1)
        mixed = self.taps(product(before, inner), step.slots, step.plans[self.call], pages)
        out: Tensor = self.output(product(after, mixed), residual)
        return out


class Taps(Layer):
    """A causal depthwise convolution.

    Args:
        channels: number of channels by role, side by side.
        places: where other parts of a token's page row are stored.
        activation: a name in `layers.mlp.ACTIVATIONS`, or None.
    """

    def __init__(
        self,
        channels: dict[str, int],
        taps: int,
        bias: bool,
        context: BuildContext,
        places: Places | None = None,
        activation: str | None = None,
    ) -> None:
        super().__init__()
        self._parts = {context.name(role): count for role, count in channels.items()}
        total = sum(channels.values())
        self.weight = context.empty(total, 1, taps)
        self.bias = context.empty(total) if bias else None
        self._places = Places(total) if places is None else places
        self._activation, self._dtype = _activation(activation), context.dtype
        self._kernel: Kernel | None = None

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a depthwise `torch.nn.Conv1d` per part."""
        for suffix, parameter in (("weight", self.weight), ("bias", self.bias)):
            if parameter is not None:
                parts = torch.split(parameter, list(self._parts.values()))
                yield from zip((f"{name}.{suffix}" for name in self._parts), parts, strict=True)

    def process_weights_after_loading(self) -> None:
        """Choose a kernel."""
        bias = None if self.bias is None else self.bias.float()
        weights = Weights(self.weight[:, 0].float().T.contiguous(), bias)
        self._kernel = choose(weights, self._places, self._activation, self._dtype)

    def forward(
        self, x: Tensor, slots: Tensor, earlier: Earlier, pages: Tensor, *tail: Tensor
    ) -> Tensor:
        """x [T, channels and other stored parts] to [T, channels]; x and the parts of `tail`, which
        are stored behind it, are written to `pages` at slots int64 [T]."""
        assert self._kernel is not None
        return self._kernel(x, Before(slots, earlier.slots, earlier.missing), pages, *tail)


def _activation(name: str | None) -> Activation:
    if name is None:
        return Activation()
    return Activation(activation(name), silu=activation(name) is SILU)
