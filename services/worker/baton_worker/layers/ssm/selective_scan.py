"""The selective scan over pages: by a kernel, or token by token in torch."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from baton_worker.kernels import triton
from baton_worker.kernels.recurrent.scan import CpuScan
from baton_worker.kernels.recurrent.ssm_states import Chains, Snapshots
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.invariant import exp2, softplus
from baton_worker.layers.ssm.decay import StateDecay
from baton_worker.layers.ssm.page_segments import Segments, Turn
from baton_worker.layers.ssm.scan_plan import AT_ONCE, Walks


class Scan(Protocol):
    """A scan that reads the inputs of the states from pages."""

    def __call__(self, pages: Snapshots, read: Tensor, walks: Walks | Segments) -> Tensor:
        """Write the states of starting pages and evaluate C of new tokens: [T, state_size] to
        float32 [T, channels]."""
        ...


def scan(at: int, dynamics: StateDecay, context: BuildContext) -> Scan:
    """The device's kernel, in C++ or in Triton, if it is available, else the torch scan. Inputs
    begin at channel `at` of a row."""
    if CpuScan.refuses(context.dtype, context.device) is None:
        return Compiled(dynamics, CpuScan(at))
    if triton.runs(context.device):
        from baton_worker.kernels.triton.recurrent.scan import TritonScan  # Needs triton.

        return Compiled(dynamics, TritonScan(at))
    return Stepwise(dynamics)


class Kernel(Protocol):
    """A kernel over the pages of sequences, see `CpuScan`."""

    def __call__(
        self, snapshots: Snapshots, read: Tensor, chains: Chains, rates: Tensor, bias: Tensor
    ) -> Tensor:
        """See `CpuScan.__call__`."""
        ...


class Compiled:
    """The scan of a kernel."""

    def __init__(self, dynamics: StateDecay, kernel: Kernel) -> None:
        self._dynamics, self._kernel = dynamics, kernel

    def __call__(self, pages: Snapshots, read: Tensor, walks: Walks | Segments) -> Tensor:
        """See `Scan`."""
        dynamics = self._dynamics
        return self._kernel(pages, read, walks.chains, dynamics.rates, dynamics.bias)


class Stepwise:
    """The torch scan, for any device. All starting pages are scanned side by side from a zero
    state; then, in sequence, the decayed state of the predecessor is added (the chunked scan of
    arXiv:2405.21060, with a rate per state element)."""

    def __init__(self, dynamics: StateDecay) -> None:
        self._dynamics = dynamics

    def __call__(self, pages: Snapshots, read: Tensor, walks: Walks | Segments) -> Tensor:
        """See `Scan`."""
        assert isinstance(walks, Walks), "the host has split the step"
        _carry(walks.turns, pages, self._dynamics)
        return _scan(read.float(), walks, pages, self._dynamics)


class _Inputs(NamedTuple):
    """The scan inputs of some pages, float32."""

    steps: Tensor
    """[n, tokens, channels]"""
    driven: Tensor
    """[n, tokens, channels]: inputs times time steps."""
    write: Tensor
    """[n, tokens, state_size]"""

    @classmethod
    def of(cls, pages: Snapshots, numbers: Tensor, dynamics: StateDecay, last: int) -> _Inputs:
        """The tokens before index `last` of pages int64 [n]. Unwritten tokens are arbitrary: they
        come after all that are read."""
        state_size, channels = dynamics.rates.shape
        rows = pages.tokens[numbers, :last, 0, 0, channels:].float()
        mixed, step, write = rows.split_with_sizes([channels, channels, state_size], dim=-1)
        steps = softplus(step + dynamics.bias)
        return cls(steps, steps * mixed, write)

    def drive(self, state: Tensor, token: int, rates: Tensor) -> None:
        """Advance states [n, state_size, channels] by one token."""
        state.mul_(exp2(self.steps[:, token, None] * rates))
        state.add_(self.write[:, token, :, None] * self.driven[:, token, None])


def _carry(turns: list[Turn], pages: Snapshots, dynamics: StateDecay) -> None:
    """Write the states of starting pages."""
    if not turns:
        return
    before = torch.cat([turn.before for turn in turns])
    started = torch.cat([turn.started for turn in turns])
    some = zip(torch.split(before, AT_ONCE), torch.split(started, AT_ONCE), strict=True)
    times = torch.cat([_added(*pair, pages, dynamics) for pair in some])
    lengths = [len(turn.started) for turn in turns]
    for turn, durations in zip(turns, torch.split(times, lengths), strict=True):
        parts = (torch.split(part, AT_ONCE) for part in (*turn, durations))
        for of, to, time in zip(*parts, strict=True):
            decay = exp2(time[:, None] * dynamics.rates)
            pages.states[to] += decay * pages.states[of]


def _added(before: Tensor, started: Tensor, pages: Snapshots, dynamics: StateDecay) -> Tensor:
    """Add to states that began at zero the decayed state of their predecessors; returns the summed
    time steps, float32 [n, channels]."""
    size = pages.tokens.shape[1]
    inputs = _Inputs.of(pages, before, dynamics, size)
    state = pages.states.new_zeros((len(before), *pages.states.shape[1:]))
    time = torch.zeros_like(inputs.steps[:, 0])
    for token in range(size):
        inputs.drive(state, token, dynamics.rates)
        time += inputs.steps[:, token]
    pages.states[started] = state
    return time


def _scan(read: Tensor, walks: Walks, pages: Snapshots, dynamics: StateDecay) -> Tensor:
    """Evaluate C of new tokens, float32 [T, state_size], to float32 [T, channels]."""
    parts = list[Tensor]()
    for (numbers, first, last), reads in zip(walks.walks, walks.spread(read), strict=True):
        inputs = _Inputs.of(pages, numbers, dynamics, last)
        state, rows = pages.states[numbers], list[Tensor]()
        for token in range(last):
            inputs.drive(state, token, dynamics.rates)
            if token >= first:
                rows.append(_sum(state * reads[:, token - first, :, None]))
        parts.append(torch.stack(rows, dim=1))
    return walks.gather(parts)


def _sum(x: Tensor) -> Tensor:
    """Sum [n, size, channels] over its second axis pairwise: the order depends neither on the place
    in the tensor nor on the device."""
    while (size := x.shape[1]) > 1:
        half = size // 2
        halves = x[:, :half] + x[:, half : 2 * half]
        x = torch.cat((halves, x[:, -1:]), dim=1) if size % 2 else halves
    return x[:, 0]
