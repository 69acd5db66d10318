"""The gated short convolution over pages of its inputs (LFM2, arXiv:2511.23404)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from baton.errors import ModelError
from baton_worker.attention import AttentionBatch
from baton_worker.kernels.pages import scatter
from baton_worker.layers.layer import Layer, Site
from baton_worker.layers.linear import Linear
from baton_worker.layers.step import Step
from baton_worker.models import spec


@dataclass(frozen=True, slots=True)
class Earlier:
    """Where the tokens before each new token are."""

    slots: Tensor
    """int64 [taps - 1, T]: of the token before it, of the one before that, ..."""
    missing: Tensor | None
    """bool [taps - 1, T]: its sequence begins later than that; None where all are there."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back a convolution reads; plans a step like an attention backend does."""

    taps: int
    uncaptured: ClassVar[str] = "a convolution looks its earlier tokens up on the host"

    def plan(self, batch: AttentionBatch, call: Reach) -> Earlier:
        """Find the tokens in the block tables, once for all layers with as many taps."""
        assert batch.trees is None and batch.ranges is None, "every earlier token counts"
        row, position = batch.flat()
        position = position - np.arange(1, call.taps)[:, None]
        missing, device = position < 0, batch.page_table.device
        at = torch.from_numpy(np.maximum(position, 0)).to(device)
        pages = batch.page_table[torch.from_numpy(row).to(device), at // batch.page_size].long()
        return Earlier(
            pages * batch.page_size + at % batch.page_size,
            torch.from_numpy(missing).to(device) if missing.any() else None,
        )


class ShortConv(nn.Module):
    """out(c * conv(b * x)), where b, c and x are projections of the input.

    What the convolution reads goes to the pages like a key: so where a text is cut, and what runs
    beside it, changes no bit, and nothing of a sequence is kept anywhere else.
    """

    rope = None

    def __init__(self, settings: spec.ShortConv, hidden: int, site: Site) -> None:
        super().__init__()
        if site.codes is not None:
            raise ModelError(
                f"A convolution does not read its inputs as {site.codes}: serve this model with "
                "--kv-cache-dtype auto."
            )
        self.call = self.backend = Reach(settings.taps)
        size, bias = settings.channels, settings.bias
        roles = ("conv_before", "conv_after", "conv_input")
        self.project = Linear(hidden, dict.fromkeys(roles, size), site, bias=bias)
        self.taps = Taps(settings, site)
        self.output = Linear(size, {"conv_output": hidden}, site, bias=bias)

    def forward(self, x: Tensor, step: Step, pages: Tensor, residual: Tensor | None) -> Tensor:
        """x [T, hidden] and this layer's pages to [T, hidden], plus `residual`.

        Raises:
            ModelError: the step holds texts that are to see both ways.
        """
        if step.texts:
            raise ModelError("A convolution sees earlier tokens only: it cannot see both ways.")
        before, after, inner = self.project(x).chunk(3, dim=-1)
        inputs = before * inner
        scatter(inputs[:, None, None], step.slots, pages)
        mixed = self.taps(inputs, step.plans[self.call], pages)
        out: Tensor = self.output(after * mixed, residual)
        return out


class Taps(Layer):
    """What a token and those before it count, channel by channel."""

    def __init__(self, settings: spec.ShortConv, site: Site) -> None:
        super().__init__()
        self._name = site.name("conv")
        self.weight = site.empty(settings.channels, 1, settings.taps)
        self.bias = site.empty(settings.channels) if settings.bias else None

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a depthwise `torch.nn.Conv1d`."""
        yield f"{self._name}.weight", self.weight
        if self.bias is not None:
            yield f"{self._name}.bias", self.bias

    def forward(self, inputs: Tensor, earlier: Earlier, pages: Tensor) -> Tensor:
        """[T, channels] to the same shape, summed in float32, from the token itself backwards."""
        weight = self.weight[:, 0].float()
        total = inputs.float() * weight[:, -1]
        for number, slots in enumerate(earlier.slots):
            read = _rows(pages, slots).float()
            if earlier.missing is not None:
                read.masked_fill_(earlier.missing[number, :, None], 0)
            total += read * weight[:, -2 - number]
        if self.bias is not None:
            total += self.bias
        return total.to(inputs.dtype)


def _rows(pages: Tensor, slots: Tensor) -> Tensor:
    """What pages hold of the tokens in slots int64 [T]: [T, channels]."""
    if pages.is_contiguous():
        return pages.view(-1, pages.shape[-1]).index_select(0, slots)
    return pages[slots // pages.shape[1], slots % pages.shape[1], 0, 0]
