"""Causal depthwise convolutions over pages; the twin is
`kernels.recurrent.convolution.PlainConvolution`."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels import triton as kernels
from baton_worker.kernels.recurrent.convolution import Activation, Before, Places, Weights, joined

_MOST = 1024
"""Channels of a program, at most."""


@triton.jit
def _place(slots, token, page_size, page_stride, token_stride):
    """Offset of the row of a token."""
    slot = tl.load(slots + token)
    return slot // page_size * page_stride + slot % page_size * token_stride


@triton.jit
def _keep(
    x, slots, pages, row_stride, page_stride, token_stride, page_size, channels, WIDTH: tl.constexpr
):
    """Write inputs of one token to its page."""
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = channel < channels
    target = pages + _place(slots, token, page_size, page_stride, token_stride)
    tl.store(target + channel, tl.load(x + token * row_stride + channel, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["num_tokens"])
def _convolve(
    x,
    taps,
    bias,
    slots,
    earlier,
    missing,
    pages,
    out,
    num_tokens,
    row_stride,
    page_stride,
    token_stride,
    page_size,
    CHANNELS: tl.constexpr,
    TAIL: tl.constexpr,
    FIRST: tl.constexpr,
    AT: tl.constexpr,
    TAPS: tl.constexpr,
    BIASED: tl.constexpr,
    MASKED: tl.constexpr,
    SILU: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Some channels of one token, of which those from FIRST on, and the tail behind them, are
    written to its page at AT."""
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside, in_row = channel < CHANNELS, channel < CHANNELS + TAIL
    newest_input = tl.load(x + token * row_stride + channel, mask=in_row, other=0.0)
    tap = taps + (TAPS - 1) * CHANNELS + channel
    total = newest_input.to(tl.float32) * tl.load(tap, mask=inside, other=0.0)
    for distance in tl.static_range(TAPS - 1):
        lookup = distance * num_tokens + token
        earlier_row = pages + _place(earlier, lookup, page_size, page_stride, token_stride)
        earlier_input = tl.load(earlier_row + channel, mask=inside, other=0.0).to(tl.float32)
        if MASKED:
            earlier_input = tl.where(tl.load(missing + lookup) == 0, earlier_input, 0.0)
        tap = taps + (TAPS - 2 - distance) * CHANNELS + channel
        total += earlier_input * tl.load(tap, mask=inside, other=0.0)
    if BIASED:
        total += tl.load(bias + channel, mask=inside, other=0.0)
    output = total.to(newest_input.dtype)
    if SILU:
        wide = output.to(tl.float32)
        output = (wide / (1.0 + tl.exp(-wide))).to(newest_input.dtype)
    tl.store(out + token * CHANNELS + channel, output, mask=inside)
    target = pages + _place(slots, token, page_size, page_stride, token_stride) + AT - FIRST
    stored = tl.where(inside, output, newest_input)
    tl.store(target + channel, stored, mask=in_row & (channel >= FIRST))


class TritonConvolution:
    """See `kernels.recurrent.convolution.Kernel`: one launch that writes the inputs of all tokens,
    since they read one another's, and one that convolves them."""

    def __init__(self, weights: Weights, places: Places, activation: Activation) -> None:
        self._taps, self._bias = weights.taps.contiguous(), weights.bias
        taps, channels = weights.taps.shape
        self._channels, self._width = channels, channels + places.tail
        self._constants: dict[str, Any] = {
            **{"CHANNELS": channels, "TAIL": places.tail, "TAPS": taps, "AT": places.at},
            **{"FIRST": places.first, "BIASED": weights.bias is not None},
            **{"SILU": activation.silu, "WIDTH": min(_MOST, kernels.power(self._width))},
        }

    def __call__(self, x: Tensor, before: Before, pages: Tensor, *tail: Tensor) -> Tensor:
        """See `Kernel`."""
        x = joined(x, tail)
        assert x.shape[1] == self._width and pages.stride(-1) == 1 and x.dtype is pages.dtype
        x = x if x.stride(1) == 1 else x.contiguous()
        out = x.new_empty((len(x), self._channels))
        if not len(x):
            return out
        slots, earlier, missing = before
        width = self._constants["WIDTH"]
        sizes = (x.stride(0), pages.stride(0), pages.stride(1), pages.shape[1])
        keep: Any = _keep[(len(x), -(-self._channels // width))]
        keep(x, slots, pages, *sizes, self._channels, WIDTH=width)
        launch: Any = _convolve[(len(x), -(-self._width // width))]
        launch(
            *(x, self._taps, self._bias, slots, earlier.contiguous()),
            None if missing is None else missing.contiguous().view(torch.uint8),
            *(pages, out, len(x), *sizes),
            MASKED=missing is not None,
            **self._constants,
        )
        return out
