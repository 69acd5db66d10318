"""The selective scan over pages of its inputs, each with the state that it begins in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from baton_worker.kernels.convolution import Places
from baton_worker.kernels.pages import scatter
from baton_worker.kernels.states import Snapshots
from baton_worker.layers.lanes import SILU, exp, exp2, softplus
from baton_worker.layers.layer import Bare, Layer, Site
from baton_worker.layers.linear import Linear
from baton_worker.layers.mixer import Carrying
from baton_worker.layers.norm import norm
from baton_worker.layers.segments import Turn
from baton_worker.layers.short_conv import Taps
from baton_worker.layers.step import Step
from baton_worker.layers.walks import AT_ONCE, Scans, Walks
from baton_worker.models import spec


class Mamba(Carrying):
    """A selective state space (Mamba, Gu and Dao 2023, arXiv:2312.00752): with a channel's input x,
    its time step d > 0 and its rates a < 0, and vectors b and c that all channels share,

        state[t] = exp(d a) state[t - 1] + d x b        float32 [state_size, channels]
        out[t] = c state[t] + skip x

    What a page keeps beside x, d and b is the state before its first token. So a token is computed
    from its own page alone: its page is walked from the first token to this one, wherever a text is
    cut. The page after it gets its state when it begins. All pages that begin are walked side by
    side from a state of zeros; then, one after the other, what is left of the state before is added
    (the chunked scan of arXiv:2405.21060, for rates that differ from number to number).
    """

    what = "A state space"

    def __init__(self, settings: spec.Mamba, hidden: int, site: Site) -> None:
        super().__init__(site)
        self.call = self.backend = Scans(settings.taps)
        size, bias = settings.channels, settings.bias
        self._channels = size
        self.project = Linear(hidden, {"scan_input": size, "scan_gate": size}, site, bias=bias)
        form = (settings.taps, settings.conv_bias, site, Places(0, at=size), settings.activation)
        self.taps = Taps({"conv": size}, *form)
        self._widths = (settings.step_rank, settings.state_size, settings.state_size)
        self.select: Bare = Linear(size, {"scan_select": sum(self._widths)}, site)
        roles = ("scan_step_norm", "scan_write_norm", "scan_read_norm")
        self.norms = nn.ModuleList(
            norm(settings.norm, width, role, site)
            for width, role in zip(self._widths, roles, strict=True)
            if settings.norm is not None
        )
        self.step = Linear(settings.step_rank, {"scan_step": size}, site)
        self.dynamics = Dynamics(settings, site)
        self.output = Linear(size, {"scan_output": hidden}, site, bias=bias)

    def forward(self, x: Tensor, step: Step, pages: Snapshots, residual: Tensor | None) -> Tensor:
        """x [T, hidden] and this layer's pages to [T, hidden], plus `residual`.

        Raises:
            ModelError: the step holds texts that are to see both ways.
        """
        self.check(step)
        walks: Walks = step.plans[self.call]
        inputs, gate = self.project(x).chunk(2, dim=-1)
        mixed = self.taps(inputs, step.slots, walks.earlier, pages.tokens)
        narrow, write, read = self._selected(mixed)
        kept = torch.cat((self.step(narrow), write), dim=-1)
        scatter(kept[:, None, None], step.slots, pages.tokens[..., 2 * self._channels :])
        _carry(walks.turns, pages, self.dynamics)
        scanned = _scan(read.float(), walks, pages, self.dynamics)
        scanned += self.dynamics.skip * mixed
        out: Tensor = self.output((scanned * SILU(gate.float())).to(x.dtype), residual)
        return out

    def _selected(self, mixed: Tensor) -> list[Tensor]:
        """[T, channels] to what time steps are made of, and how states are written and read."""
        parts = self.select(mixed, None).split(self._widths, dim=-1)
        if not self.norms:
            return list(parts)
        return [norm(part.contiguous()) for norm, part in zip(self.norms, parts, strict=True)]


class Dynamics(Layer):
    """How states change by themselves, what of an input passes them by, and the least time steps:
    in float32, whatever the model's precision is."""

    def __init__(self, settings: spec.Mamba, site: Site) -> None:
        super().__init__()
        self._names = (site.name("scan_rates"), site.name("scan_skip"))
        self._bias_name = f"{site.name('scan_step')}.bias"
        site = replace(site, dtype=torch.float32)
        self.rates = site.empty(settings.channels, settings.state_size)
        self.skip = site.empty(settings.channels)
        self.bias = site.empty(settings.channels)

    def destinations(self) -> Iterator[tuple[str, Tensor]]:
        """The logarithms of the rates and the skips, whose tensors have no suffix; the bias."""
        yield from zip(self._names, (self.rates, self.skip), strict=True)
        yield self._bias_name, self.bias

    def finish(self) -> None:
        """Rates of their logarithms, laid out like a state; in halvings, not to the base e: powers
        of two are faster."""
        rates = exp(self.rates).T * -math.log2(math.e)
        self.rates = nn.Parameter(rates.contiguous(), requires_grad=False)


class _Inputs(NamedTuple):
    """What drives the states of some pages, float32."""

    steps: Tensor
    """[n, tokens, channels]"""
    driven: Tensor
    """[n, tokens, channels]: inputs times steps."""
    write: Tensor
    """[n, tokens, state_size]"""

    @classmethod
    def of(cls, pages: Snapshots, numbers: Tensor, dynamics: Dynamics, last: int) -> _Inputs:
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


def _carry(turns: list[Turn], pages: Snapshots, dynamics: Dynamics) -> None:
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


def _added(before: Tensor, begun: Tensor, pages: Snapshots, dynamics: Dynamics) -> Tensor:
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


def _scan(read: Tensor, walks: Walks, pages: Snapshots, dynamics: Dynamics) -> Tensor:
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
