"""Scans over the pages of a delta net: by a kernel, or block by block in torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.kernels import triton
from baton_worker.kernels.recurrent.delta import CpuDelta, CpuDeltaGates, Shape
from baton_worker.kernels.recurrent.ssm_states import Blocks, Chains, Snapshots
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.invariant import sigmoid
from baton_worker.layers.ssm.delta_inputs import Decays
from baton_worker.layers.ssm.delta_rule import (
    Solved,
    Tokens,
    solve,
    unit,
)
from baton_worker.layers.ssm.page_segments import Segments, Turn

_MOST = 16
"""Maximum number of tokens in a block."""
_AT_ONCE = 8
"""Number of pages with states copied at a time."""


class Walk(Protocol):
    """A scan over pages that hold K and V after the convolution."""

    def __call__(self, pages: Snapshots, query: Tensor, segments: Segments) -> Tensor:
        """Write the states of starting pages and evaluate queries [T, key_width] after their
        tokens: float32 [T, value_width]."""
        ...


def walk(settings: spec.DeltaNet, decays: Decays, context: BuildContext) -> Walk:
    """The device's kernel, in C++ or in Triton, if it is available, else the torch scan."""
    if CpuDelta.refuses(context.dtype, context.device) is None:
        return OnCpu(settings, decays)
    if triton.runs(context.device):
        from baton_worker.kernels.triton.recurrent.delta import TritonDelta  # Needs triton.

        kernel = TritonDelta(_shape(settings), exact=bool(context.row_block))
        return Compiled(settings, decays, kernel)
    return Blockwise(settings, decays)


def _shape(settings: spec.DeltaNet) -> Shape:
    """The layout of a token's page row."""
    at = settings.convolved
    heads = (settings.num_heads, settings.num_key_heads, settings.key_dim, settings.value_dim)
    channels = settings.decays // settings.num_heads
    return Shape(at, at + settings.key_width, *heads, channels)


class Kernel(Protocol):
    """A kernel over the pages of sequences, see `CpuDelta`."""

    def __call__(
        self, snapshots: Snapshots, query: Tensor, chains: Chains, strength: Tensor, decay: Tensor
    ) -> Tensor:
        """See `CpuDelta.__call__`."""
        ...


class OnCpu:
    """The scan of the kernels in C++."""

    def __init__(self, settings: spec.DeltaNet, decays: Decays) -> None:
        self._heads, self._decays = (settings.num_key_heads, settings.key_dim), decays
        self._gates, self._kernel = CpuDeltaGates(settings.strength), CpuDelta(_shape(settings))

    def __call__(self, pages: Snapshots, query: Tensor, segments: Segments) -> Tensor:
        """See `Walk`."""
        chains, decays = segments.chains, self._decays
        gates = self._gates(pages.tokens, chains, decays.rate, decays.bias)
        queries = torch.unflatten(query, -1, self._heads)
        return self._kernel(pages, queries, chains, *gates).flatten(1)


class Compiled:
    """The scan of a kernel in Triton; elementwise functions are applied in torch first."""

    def __init__(self, settings: spec.DeltaNet, decays: Decays, kernel: Kernel) -> None:
        self._settings, self._decays, self._kernel = settings, decays, kernel

    def __call__(self, pages: Snapshots, query: Tensor, segments: Segments) -> Tensor:
        """See `Walk`."""
        s, chains = self._settings, segments.chains
        gates = pages.tokens[chains.pages, :, 0, 0, -(s.num_heads + s.decays) :]
        strength, decay = torch.split(gates, [s.num_heads, s.decays], dim=-1)
        strength = s.strength * sigmoid(strength.float())
        queries = torch.unflatten(query.float(), -1, (s.num_key_heads, s.key_dim))
        return self._kernel(pages, queries, chains, strength, self._decays(decay)).flatten(1)


class Blockwise:
    """The torch scan, for any device. A block is always computed whole, at the same place in its
    page, whichever of its tokens are new, so chunk boundaries do not change the bits. A page is
    solved for the state of the next page, and once per step for its new tokens."""

    def __init__(self, settings: spec.DeltaNet, decays: Decays) -> None:
        self._settings, self._decays = settings, decays

    def __call__(self, pages: Snapshots, query: Tensor, segments: Segments) -> Tensor:
        """See `Walk`."""
        assert segments.turns is not None, "turns are known on the host"
        for turn in segments.turns:
            self._carry(turn, pages, query)
        return self._attend(query, segments.blocks, pages)

    def _carry(self, turn: Turn, pages: Snapshots, like: Tensor) -> None:
        """Write the states of starting pages, without queries."""
        size, width = pages.tokens.shape[1], self._settings.key_width
        for before, started in _split(*turn):
            *_, last = self._blocks(pages, before, like.new_zeros(len(before), size, width))
            pages.states[started] = last.after()

    def _attend(self, query: Tensor, blocks: Blocks, pages: Snapshots) -> Tensor:
        """[T, key_width] to float32 [T, value_width]."""
        counts = blocks.begins.diff()
        ends, token = blocks.firsts + counts, torch.arange(len(query), device=query.device)
        number = torch.arange(len(counts), device=query.device).repeat_interleave(counts)
        place = token - blocks.begins[number] + blocks.firsts[number]
        size = _block(pages)
        padded = query.new_zeros(len(counts), -(-int(ends.max()) // size) * size, query.shape[1])
        padded[number, place] = query
        parts = [
            torch.cat([block.out() for block in self._blocks(pages, *part)], dim=2)
            for part in _split(blocks.pages, padded, ends)
        ]
        return torch.cat(parts).transpose(1, 2)[number, place].flatten(1)

    def _blocks(
        self, pages: Snapshots, numbers: Tensor, query: Tensor, ends: Tensor | None = None
    ) -> Iterator[Solved]:
        """Solve the blocks of pages int64 [n] in order from the pages' states, with queries [n,
        tokens, key_width] at their first tokens. The pages have `ends` tokens, int64 [n], or are
        full."""
        count, size = query.shape[1], _block(pages)
        rows = pages.tokens[numbers, :count, 0, 0, self._settings.convolved :]
        if ends is not None:
            # Unwritten tokens hold stale data of other sequences, which may overflow in sums.
            places = torch.arange(count, device=ends.device)
            rows = rows.masked_fill((places >= ends[:, None])[..., None], 0)
        solved: Solved | None = None
        for tokens, new_queries in zip(
            *(torch.split(x, size, 1) for x in (rows, query)), strict=True
        ):
            state = pages.states[numbers] if solved is None else solved.after()
            solved = solve(self._tokens(tokens), self._queries(new_queries), state)
            yield solved

    def _tokens(self, rows: Tensor) -> Tokens:
        """Page rows [n, B, ...] without the channels of the convolution."""
        s = self._settings
        sizes = [s.key_width, s.value_width, s.num_heads, s.decays]
        key, value, strength, decay = torch.split(rows, sizes, dim=-1)
        return Tokens(
            self._for_each_head(unit(_heads(key, s.key_dim))),
            _heads(value, s.value_dim).transpose(1, 2),
            (s.strength * sigmoid(strength.float())).transpose(1, 2)[..., None],
            self._decays(decay).transpose(1, 2),
        )

    def _queries(self, query: Tensor) -> Tensor:
        """[n, B, key_width] to float32 [n, num_heads, B, key_dim]."""
        dim = self._settings.key_dim
        return self._for_each_head(unit(_heads(query, dim)) * dim**-0.5)

    def _for_each_head(self, keys: Tensor) -> Tensor:
        """[n, B, num_key_heads, key_dim] to [n, num_heads, B, key_dim]."""
        times = self._settings.num_heads // self._settings.num_key_heads
        return keys.repeat_interleave(times, dim=2).transpose(1, 2)


def _heads(x: Tensor, dim: int) -> Tensor:
    """[n, B, heads * dim] to float32 [n, B, heads, dim]."""
    return torch.unflatten(x.float(), -1, (-1, dim))


def _block(pages: Snapshots) -> int:
    """Number of tokens in a block."""
    return math.gcd(pages.tokens.shape[1], _MOST)


def _split(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """A few pages at a time, since their states are large."""
    return zip(*(torch.split(tensor, _AT_ONCE) for tensor in tensors), strict=True)
