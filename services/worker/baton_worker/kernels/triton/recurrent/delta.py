"""Gated delta nets over pages of keys and values, token by token; the twin in C++ is
`kernels.recurrent.delta.CpuDelta`, the one in torch `layers.ssm.delta_scan.Blockwise`. Rows of many
new tokens are left to `delta_chunks`."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.recurrent.delta import Shape
from baton_worker.kernels.recurrent.ssm_states import Chains, Snapshots
from baton_worker.kernels.triton import power
from baton_worker.kernels.triton.recurrent import chunks
from baton_worker.kernels.triton.recurrent.delta_chunks import delta_chunks

_VALUES = 8
"""Value channels of a program: with them the state of a head fits into the registers of a warp."""
_LEAST = tl.constexpr(1e-6)
"""Added to squared norms to avoid division by zero."""


@triton.jit
def _unit(at, mask):
    """A vector of length 1, float32."""
    x = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    return x * tl.rsqrt(tl.sum(x * x, 0) + _LEAST)


@triton.jit(do_not_specialize=["at_most"])
def _walk(
    snapshots,
    query,
    strength,
    decay,
    chains,
    out,
    at_most,
    layout,
    scale,
    PAGE_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Some value channels of one head, along the pages of one sequence of `at_most` new tokens."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if chunks.count(chains, row) > at_most:
        return
    key, value = tl.arange(0, KEYS), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    has_key, has_value = key < KEY_DIM, value < VALUE_DIM
    inside = has_key[:, None] & has_value[None, :]
    state_offset = (head * KEY_DIM + key[:, None]) * VALUE_DIM + value[None, :]
    key_head = head // GROUP * KEY_DIM
    start, stop = tl.load(chains.starts + row), tl.load(chains.stops + row)
    initial = snapshots.states + tl.load(chains.pages + start) * layout.state_stride
    state = tl.load(initial + state_offset, mask=inside, other=0.0)
    for entry in range(start, stop):
        page_number, first_query, first_new, end = chunks.page_of_row(
            chains, entry, stop, PAGE_SIZE
        )
        if entry > start:
            tl.store(
                snapshots.states + page_number * layout.state_stride + state_offset,
                state,
                mask=inside,
            )
        for token in range(0, end):
            token_row = (
                snapshots.tokens + page_number * layout.page_stride + token * layout.token_stride
            )
            key_vector = _unit(token_row + layout.key_at + key_head + key, has_key)
            value_vector = tl.load(
                token_row + layout.value_at + head * VALUE_DIM + value, mask=has_value, other=0.0
            )
            token_head = (entry * PAGE_SIZE + token) * HEADS + head
            if BY_CHANNEL:
                factor = tl.exp(
                    tl.load(decay + token_head * KEY_DIM + key, mask=has_key, other=0.0)
                )
                state *= factor[:, None]
            else:
                state *= tl.exp(tl.load(decay + token_head))
            predicted = tl.sum(key_vector[:, None] * state, 0)
            change = tl.load(strength + token_head) * (value_vector.to(tl.float32) - predicted)
            state += key_vector[:, None] * change[None, :]
            if token >= first_new:
                query_index = first_query + token - first_new
                query_vector = _unit(
                    query + query_index * (HEADS // GROUP * KEY_DIM) + key_head + key, has_key
                )
                output = tl.sum(query_vector[:, None] * state, 0) * scale
                target = out + (query_index * HEADS + head) * VALUE_DIM + value
                tl.store(target, output, mask=has_value)


class TritonDelta:
    """See `kernels.recurrent.delta.CpuDelta`: one launch for rows of few new tokens, which are
    scanned token by token from the start of a page, and two for those of many. How a row is
    computed depends on the row alone; if `exact`, all rows are scanned token by token, and the bits
    of a token do not depend on chunk boundaries either."""

    def __init__(self, shape: Shape, *, exact: bool = False) -> None:
        self._shape, self._exact = shape, exact
        self._constants: dict[str, Any] = {
            **{"HEADS": shape.heads, "GROUP": shape.heads // shape.key_heads},
            **{"KEY_DIM": shape.key_dim, "VALUE_DIM": shape.value_dim},
            **{"BY_CHANNEL": shape.channels > 1, "KEYS": power(shape.key_dim)},
            **{"VALUES": min(_VALUES, power(shape.value_dim)), "num_warps": 1},
        }

    def __call__(
        self, snapshots: Snapshots, query: Tensor, chains: Chains, strength: Tensor, decay: Tensor
    ) -> Tensor:
        """See `CpuDelta.__call__`."""
        shape, (tokens, states) = self._shape, snapshots
        expected = (len(chains.pages), tokens.shape[1], shape.heads)
        assert strength.shape == expected and decay.shape == (*expected, shape.channels)
        assert tokens.stride(-1) == 1 and states[0].is_contiguous()
        out = torch.empty(
            (len(query), shape.heads, shape.value_dim), dtype=torch.float32, device=query.device
        )
        chains = Chains(*(column.contiguous() for column in chains))
        arguments = (query.contiguous(), chains, strength.contiguous(), decay.contiguous(), out)
        step = len(query), len(chains.starts), tokens.shape[1]
        for launch in chunks.launches(*step, exact=self._exact):
            if launch.chunked:
                delta_chunks(shape, snapshots, *arguments)
            else:
                self._walk(shape, snapshots, *arguments, launch.at_most)
        return out

    def _walk(
        self,
        shape: Shape,
        snapshots: Snapshots,
        query: Tensor,
        chains: Chains,
        strength: Tensor,
        decay: Tensor,
        out: Tensor,
        at_most: int,
    ) -> None:
        """See `delta_chunks`: of rows of `at_most` new tokens."""
        tiles = -(-shape.value_dim // self._constants["VALUES"])
        walk: Any = _walk[(len(chains.starts), shape.heads, tiles)]
        walk(
            *(snapshots, query, strength, decay, chains, out, at_most),
            *(chunks.Layout.of(snapshots, shape.key, shape.value), shape.key_dim**-0.5),
            PAGE_SIZE=snapshots.tokens.shape[1],
            **self._constants,
        )
