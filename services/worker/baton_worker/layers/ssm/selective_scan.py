"""What walks the pages of a selective scan: in C++, or token by token in torch."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from baton_worker.kernels.scan import CpuScan
from baton_worker.kernels.ssm_states import Snapshots
from baton_worker.layers.invariant import exp2, softplus
from baton_worker.layers.layer import BuildContext
from baton_worker.layers.ssm.decay import StateDecay
from baton_worker.layers.ssm.page_segments import Turn
from baton_worker.layers.ssm.scan_plan import AT_ONCE, Walks


class Scan(Protocol):
    """Both read what drives states where pages keep it."""

    def __call__(self, pages: Snapshots, read: Tensor, walks: Walks) -> Tensor:
        """Give pages that begin their states, and tell what new tokens read of theirs: float32
        [T, state_size] to float32 [T, channels]."""
        ...


def scan(at: int, dynamics: StateDecay, site: BuildContext) -> Scan:
    """The C++ kernel where it can be had, else its twin. Inputs begin at channel `at` of a row."""
    plain = CpuScan.refuses(site.dtype, site.device) is not None
    return Stepwise(dynamics) if plain else Compiled(at, dynamics)


class Compiled:
    """By the kernel."""

    def __init__(self, at: int, dynamics: StateDecay) -> None:
        self._dynamics, self._kernel = dynamics, CpuScan(at)

    def __call__(self, pages: Snapshots, read: Tensor, walks: Walks) -> Tensor:
        """See `Scan`."""
        dynamics = self._dynamics
        return self._kernel(pages, read, walks.chains, dynamics.rates, dynamics.bias)


class Stepwise:
    """In torch, on any device. All pages that begin are walked side by side from a state of zeros;
    then, one after the other, what is left of the state before is added (the chunked scan of
    arXiv:2405.21060, for rates that differ from number to number)."""

    def __init__(self, dynamics: StateDecay) -> None:
        self._dynamics = dynamics

    def __call__(self, pages: Snapshots, read: Tensor, walks: Walks) -> Tensor:
        """See `Scan`."""
        _carry(walks.turns, pages, self._dynamics)
        return _scan(read, walks, pages, self._dynamics)


class _Inputs(NamedTuple):
    """What drives the states of some pages, float32."""

    steps: Tensor
    """[n, tokens, channels]"""
    driven: Tensor
    """[n, tokens, channels]: inputs times steps."""
    write: Tensor
    """[n, tokens, state_size]"""

    @classmethod
    def of(cls, pages: Snapshots, numbers: Tensor, dynamics: StateDecay, last: int) -> _Inputs:
        """Those of the tokens before number `last` of pages int64 [n]. What is not written yet is
        anything: it comes after all that counts."""
        state_size, channels = dynamics.rates.shape
        kept = pages.tokens[numbers, :last, 0, 0, channels:].float()
        mixed, step, write = kept.split_with_sizes([channels, channels, state_size], dim=-1)
        steps = softplus(step + dynamics.bias)
        return cls(steps, steps * mixed, write)

    def drive(self, state: Tensor, token: int, rates: Tensor) -> None:
        """Change states [n, state_size, channels] by one token."""
        state.mul_(exp2(self.steps[:, token, None] * rates))
        state.add_(self.write[:, token, :, None] * self.driven[:, token, None])


def _carry(turns: list[Turn], pages: Snapshots, dynamics: StateDecay) -> None:
    """Give pages that begin their states."""
    if not turns:
        return
    before = torch.cat([turn.before for turn in turns])
    begun = torch.cat([turn.begun for turn in turns])
    some = zip(torch.split(before, AT_ONCE), torch.split(begun, AT_ONCE), strict=True)
    times = torch.cat([_added(*pair, pages, dynamics) for pair in some])
    lengths = [len(turn.begun) for turn in turns]
    for turn, taken in zip(turns, torch.split(times, lengths), strict=True):
        parts = (torch.split(part, AT_ONCE) for part in (*turn, taken))
        for of, to, time in zip(*parts, strict=True):
            left = exp2(time[:, None] * dynamics.rates)
            pages.states[to] += left * pages.states[of]


def _added(before: Tensor, begun: Tensor, pages: Snapshots, dynamics: StateDecay) -> Tensor:
    """Leave in pages what those before them would have left, had they begun with zeros; the time
    that these took: float32 [n, channels]."""
    size = pages.tokens.shape[1]
    inputs = _Inputs.of(pages, before, dynamics, size)
    state = pages.states.new_zeros((len(before), *pages.states.shape[1:]))
    time = torch.zeros_like(inputs.steps[:, 0])
    for token in range(size):
        inputs.drive(state, token, dynamics.rates)
        time += inputs.steps[:, token]
    pages.states[begun] = state
    return time


def _scan(read: Tensor, walks: Walks, pages: Snapshots, dynamics: StateDecay) -> Tensor:
    """How new tokens read their states, float32 [T, state_size], to what they read: float32
    [T, channels]."""
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
    """[n, size, channels] over its second axis, by halves: in one order, wherever a number is in
    its tensor and whatever the device."""
    while (size := x.shape[1]) > 1:
        half = size // 2
        halves = x[:, :half] + x[:, half : 2 * half]
        x = torch.cat((halves, x[:, -1:]), dim=1) if size % 2 else halves
    return x[:, 0]
