"""Delta nets over pages of keys and values, each with the state that it begins in."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from baton_worker.kernels.convolution import Places
from baton_worker.kernels.states import Blocks, Snapshots
from baton_worker.layers.delta_inputs import Decays, inputs
from baton_worker.layers.delta_rule import Solved, Tokens, solve, unit
from baton_worker.layers.gated_norm import GatedNorm
from baton_worker.layers.lanes import sigmoid
from baton_worker.layers.layer import Site
from baton_worker.layers.linear import Linear
from baton_worker.layers.mixer import Carrying
from baton_worker.layers.segments import Cut, Segments, Turn
from baton_worker.layers.short_conv import Taps
from baton_worker.layers.step import Step
from baton_worker.models import spec

_MOST = 16
"""Most tokens of a block."""
_AT_ONCE = 8
"""Pages whose states are copied at a time."""


class DeltaNet(Carrying):
    """Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464) and Kimi Delta Attention
    (arXiv:2510.26692).

    Beside what its tokens bring, a page keeps the state before its first one, and gets it when it
    begins, from the page before it alone. A token is computed from its own page: block by block of
    a fixed number of tokens from the state of the page on, up to the block where it is. A block is
    always computed whole, at the same place, whichever of its tokens are new. So the bits are the
    same wherever a text is cut.

        state[page] -> | k v  k v  k v  k v | -> | k v  k v  ... |     a new token in the second
                          block, summed up         out, for it          block of its page

    A page keeps keys and values as the convolution leaves them, in the dtype of the model, and what
    strengths and decays are computed from; the rest is float32. What tokens add to the state is
    not kept, though a decode step then solves its block again: in bfloat16 it would lose half of
    its digits, and in float32 it would be as large as all else that a page keeps.
    """

    what = "A delta net"

    def __init__(self, settings: spec.DeltaNet, hidden: int, site: Site) -> None:
        super().__init__(site)
        self.call = self.backend = Cut(settings.taps)
        self._settings = settings
        self.inputs = inputs(settings, hidden, site)
        key, value = settings.key_width, settings.value_width
        channels = {"delta_query_conv": key, "delta_key_conv": key, "delta_value_conv": value}
        places = Places(key, settings.num_heads + settings.decays, settings.convolved)
        self.taps = Taps(channels, settings.taps, False, site, places, settings.activation)
        self.decays = Decays(settings, site)
        self.norm = GatedNorm(settings.norm, value, "delta_norm", site)
        self.output = Linear(value, {"delta_output": hidden}, site)

    def forward(self, x: Tensor, step: Step, pages: Snapshots, residual: Tensor | None) -> Tensor:
        """x [T, hidden] and this layer's pages to [T, hidden], plus `residual`.

        Raises:
            ModelError: the step holds texts that are to see both ways.
        """
        self.check(step)
        segments: Segments = step.plans[self.call]
        brought, gate = self.inputs(x)
        mixed = self.taps(brought, step.slots, segments.earlier, pages.tokens)
        for turn in segments.turns:
            self._carry(turn, pages, mixed)
        seen = self._attend(mixed[:, : self._settings.key_width], segments.blocks, pages)
        out: Tensor = self.output(self.norm(seen, gate), residual)
        return out

    def _carry(self, turn: Turn, pages: Snapshots, like: Tensor) -> None:
        """Give pages that begin their states; nobody asks anything."""
        size, width = pages.tokens.shape[1], self._settings.key_width
        for before, begun in _split(*turn):
            *_, last = self._blocks(pages, before, like.new_zeros(len(before), size, width))
            pages.states[begun] = last.after()

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
            torch.cat([block.out() for block in self._blocks(pages, *given)], dim=2)
            for given in _split(blocks.pages, padded, ends)
        ]
        return torch.cat(parts).transpose(1, 2)[number, place].flatten(1)

    def _blocks(
        self, pages: Snapshots, numbers: Tensor, query: Tensor, ends: Tensor | None = None
    ) -> Iterator[Solved]:
        """Blocks of pages int64 [n] behind their states, one after the other, and queries
        [n, tokens, key_width] at their first tokens. The pages have `ends` tokens, int64 [n], or
        are full."""
        count, size = query.shape[1], _block(pages)
        rows = pages.tokens[numbers, :count, 0, 0, self._settings.convolved :]
        if ends is not None:
            # What else is there may be of anybody, and too large to be summed up.
            places = torch.arange(count, device=ends.device)
            rows = rows.masked_fill((places >= ends[:, None])[..., None], 0)
        solved: Solved | None = None
        for kept, asked in zip(*(torch.split(x, size, 1) for x in (rows, query)), strict=True):
            state = pages.states[numbers] if solved is None else solved.after()
            solved = solve(self._tokens(kept), self._queries(asked), state)
            yield solved

    def _tokens(self, kept: Tensor) -> Tokens:
        """Rows of pages, [n, B, ...], without what the convolution reads."""
        s = self._settings
        sizes = [s.key_width, s.value_width, s.num_heads, s.decays]
        key, value, strength, decay = torch.split(kept, sizes, dim=-1)
        return Tokens(
            self._for_each_head(unit(_heads(key, s.key_dim))),
            _heads(value, s.value_dim).transpose(1, 2),
            (s.strength * sigmoid(strength.float())).transpose(1, 2)[..., None],
            self.decays(decay).transpose(1, 2),
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
    """Tokens of a block."""
    return math.gcd(pages.tokens.shape[1], _MOST)


def _split(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Pages a few at a time, since their states are large."""
    return zip(*(torch.split(tensor, _AT_ONCE) for tensor in tensors), strict=True)
