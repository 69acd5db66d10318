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
from baton_worker.kernels.convolution import (
    Activation,
    Before,
    Kernel,
    Places,
    Weights,
    choose,
)
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.invariant import SILU
from baton_worker.layers.layer import BuildContext, Layer
from baton_worker.layers.linear import Linear
from baton_worker.layers.mixer import Carrying
from baton_worker.layers.mlp import activation


@dataclass(frozen=True, slots=True)
class Earlier:
    """Where the tokens before each new token are."""

    slots: Tensor
    """int64 [taps - 1, T]: of the token before it, of the one before that, ..."""
    missing: Tensor | None
    """bool [taps - 1, T]: its sequence begins later than that; None where all are there."""

    @classmethod
    def of(cls, batch: AttentionBatch, taps: int) -> Earlier:
        """Find them in the block tables."""
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
    """How far back a convolution reads; plans a step like an attention backend does."""

    taps: int
    capture_blocker: ClassVar[str] = "a convolution looks its earlier tokens up on the host"

    def plan(self, batch: AttentionBatch, call: Reach) -> Earlier:
        """Find the tokens in the block tables, once for all layers with as many taps."""
        assert batch.trees is None and batch.ranges is None, "every earlier token counts"
        return Earlier.of(batch, call.taps)


class ShortConv(Carrying):
    """out(c * conv(b * x)), where b, c and x are projections of the input.

    What the convolution reads goes to the pages like a key: so where a text is cut, and what runs
    beside it, changes no bit, and nothing of a sequence is kept anywhere else.
    """

    what = "A convolution"

    def __init__(self, settings: spec.ShortConv, hidden: int, site: BuildContext) -> None:
        super().__init__(site)
        self.call = self.backend = Reach(settings.taps)
        size, bias = settings.channels, settings.bias
        roles = ("conv_before", "conv_after", "conv_input")
        self.project = Linear(hidden, dict.fromkeys(roles, size), site, bias=bias)
        self.taps = Taps({"conv": size}, settings.taps, bias, site)
        self.output = Linear(size, {"conv_output": hidden}, site, bias=bias)

    def forward(
        self, x: Tensor, step: ForwardContext, pages: Tensor, residual: Tensor | None
    ) -> Tensor:
        """x [T, hidden] and this layer's pages to [T, hidden], plus `residual`.

        Raises:
            ModelError: the step holds texts that are to see both ways.
        """
        self.check(step)
        before, after, inner = self.project(x).chunk(3, dim=-1)
        mixed = self.taps(before * inner, step.slots, step.plans[self.call], pages)
        out: Tensor = self.output(after * mixed, residual)
        return out


class Taps(Layer):
    """What a token and those before it count, channel by channel.

    Args:
        channels: by role, side by side.
        places: what of a token is kept where, beside the channels themselves.
        activation: a row of `layers.mlp.ACTIVATIONS`; None is none.
    """

    def __init__(
        self,
        channels: dict[str, int],
        taps: int,
        bias: bool,
        site: BuildContext,
        places: Places | None = None,
        activation: str | None = None,
    ) -> None:
        super().__init__()
        self._parts = {site.name(role): count for role, count in channels.items()}
        total = sum(channels.values())
        self.weight = site.empty(total, 1, taps)
        self.bias = site.empty(total) if bias else None
        self._places = Places(total) if places is None else places
        self._activation, self._dtype = _activation(activation), site.dtype
        self._kernel: Kernel | None = None

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a depthwise `torch.nn.Conv1d` for each part."""
        for suffix, parameter in (("weight", self.weight), ("bias", self.bias)):
            if parameter is not None:
                parts = torch.split(parameter, list(self._parts.values()))
                yield from zip((f"{name}.{suffix}" for name in self._parts), parts, strict=True)

    def process_weights_after_loading(self) -> None:
        """Choose a kernel."""
        bias = None if self.bias is None else self.bias.float()
        weights = Weights(self.weight[:, 0].float().T.contiguous(), bias)
        self._kernel = choose(weights, self._places, self._activation, self._dtype)

    def forward(self, x: Tensor, slots: Tensor, earlier: Earlier, pages: Tensor) -> Tensor:
        """x [T, channels and what else is kept], written to slots int64 [T] of the pages, to
        [T, channels]."""
        assert self._kernel is not None
        return self._kernel(x, Before(slots, earlier.slots, earlier.missing), pages)


def _activation(name: str | None) -> Activation:
    if name is None:
        return Activation()
    return Activation(activation(name), silu=activation(name) is SILU)
