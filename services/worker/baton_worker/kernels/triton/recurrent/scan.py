"""The selective scan over pages of its inputs, token by token; the twin in C++ is
`kernels.recurrent.scan.CpuScan`, the one in torch `layers.ssm.selective_scan.Stepwise`."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.recurrent.ssm_states import Chains, Snapshots
from baton_worker.kernels.triton import power
from baton_worker.kernels.triton.recurrent import chunks

_CHANNELS = 64
"""Channels of a program: with them their states fit into the registers of a warp."""


@triton.jit
def _softplus(x):
    """log(1 + e^x). The logarithm is 2 artanh(y / (2 + y)) of a y of at most 1, by its series: that
    of a number near 1 would have no digits left of a small y."""
    y = tl.exp(-tl.abs(x))
    z = y / (2.0 + y)
    square = z * z
    series = 1.0 / 17
    for odd in tl.static_range(15, 0, -2):
        series = series * square + 1.0 / odd
    return tl.maximum(x, 0.0) + 2.0 * z * series


@triton.jit
def _walk(
    snapshots,
    rates,
    bias,
    read,
    chains,
    out,
    page_stride,
    token_stride,
    state_stride,
    input_at,
    PAGE_SIZE: tl.constexpr,
    STATES: tl.constexpr,
    CHANNELS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Some channels, along the pages of one sequence."""
    row = tl.program_id(0).to(tl.int64)
    key, channel = tl.arange(0, KEYS), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    has_key, has_channel = key < STATES, channel < CHANNELS
    inside = has_key[:, None] & has_channel[None, :]
    state_offset = key[:, None] * CHANNELS + channel[None, :]
    rate = tl.load(rates + state_offset, mask=inside, other=0.0)
    step_bias = tl.load(bias + channel, mask=has_channel, other=0.0)
    start, stop = tl.load(chains.starts + row), tl.load(chains.stops + row)
    initial = snapshots.states + tl.load(chains.pages + start) * state_stride
    state = tl.load(initial + state_offset, mask=inside, other=0.0)
    for entry in range(start, stop):
        page_number, first_query, first_new, end = chunks.page_of_row(
            chains, entry, stop, PAGE_SIZE
        )
        if entry > start:
            tl.store(
                snapshots.states + page_number * state_stride + state_offset, state, mask=inside
            )
        for token in range(0, end):
            token_row = (
                snapshots.tokens + page_number * page_stride + token * token_stride + input_at
            )
            x = tl.load(token_row + channel, mask=has_channel, other=0.0).to(tl.float32)
            step = tl.load(token_row + CHANNELS + channel, mask=has_channel, other=0.0).to(
                tl.float32
            )
            write = tl.load(token_row + 2 * CHANNELS + key, mask=has_key, other=0.0).to(tl.float32)
            step = _softplus(step + step_bias)
            state = state * tl.exp2(step[None, :] * rate) + write[:, None] * (step * x)[None, :]
            if token >= first_new:
                query_index = first_query + token - first_new
                read_vector = tl.load(read + query_index * STATES + key, mask=has_key, other=0.0)
                target = out + query_index * CHANNELS + channel
                tl.store(target, tl.sum(read_vector[:, None] * state, 0), mask=has_channel)


class TritonScan:
    """See `kernels.recurrent.scan.CpuScan`: one launch. A page is scanned from its first token, so
    the bits of a token depend neither on other sequences nor on chunk boundaries."""

    def __init__(self, at: int) -> None:
        self._at = at

    def __call__(
        self, snapshots: Snapshots, read: Tensor, chains: Chains, rates: Tensor, bias: Tensor
    ) -> Tensor:
        """See `CpuScan.__call__`."""
        (tokens, states), (state_size, channels) = snapshots, rates.shape
        read = read.float()
        assert read.shape[1:] == (state_size,) and states.shape[1:] == rates.shape
        assert tokens.stride(-1) == 1 and states[0].is_contiguous() and bias.shape == (channels,)
        out = torch.empty((len(read), channels), dtype=torch.float32, device=read.device)
        if not len(read):
            return out
        width = min(_CHANNELS, power(channels))
        launch: Any = _walk[(len(chains.starts), -(-channels // width))]
        launch(
            *(snapshots, rates.contiguous(), bias.contiguous(), read.contiguous()),
            *(Chains(*(column.contiguous() for column in chains)), out),
            *(tokens.stride(0), tokens.stride(1), states.stride(0), self._at),
            PAGE_SIZE=tokens.shape[1],
            STATES=state_size,
            CHANNELS=channels,
            KEYS=power(state_size),
            WIDTH=width,
            num_warps=1,
        )
        return out
