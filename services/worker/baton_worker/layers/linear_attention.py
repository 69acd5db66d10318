"""Linear attention over pages of keys and values, each with the state that it begins in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from baton.errors import ModelError
from baton_worker.attention import AttentionBatch
from baton_worker.kernels.pages import scatter
from baton_worker.kv.cache import Snapshots
from baton_worker.layers.lanes import sigmoid
from baton_worker.layers.layer import Site
from baton_worker.layers.linear import Linear
from baton_worker.layers.mlp import activation
from baton_worker.layers.norm import norm
from baton_worker.layers.step import Step
from baton_worker.models import spec

Column: TypeAlias = NDArray[np.int64]

_BLOCK = 16
"""Most queries in one product."""
_AT_ONCE = 8
"""States that are copied out of their pages at a time."""


class Turn(NamedTuple):
    """Pages that begin, each with the one before it: int64 [n] both."""

    before: Tensor
    begun: Tensor


@dataclass(frozen=True, slots=True)
class Segments:
    """A step cut where pages begin, and its tokens in blocks that never straddle two pages."""

    turns: list[Turn]
    """Of each sequence the first page that begins, then of each the second, ..."""
    pages: Tensor
    """int64 [N]: the page of each block."""
    numbers: Tensor
    """int64 [N]: which block of its page it is."""
    places: Tensor
    """int64 [T]: block * block size + offset of each token."""
    size: int
    """Tokens per block."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Plans a step like an attention backend does; the same for all layers of a group."""

    uncaptured = "linear attention looks on the host for the pages that a step begins"

    def plan(self, batch: AttentionBatch, call: Blocks) -> Segments:
        """Cut the step, once for all layers of a group."""
        assert batch.trees is None and batch.ranges is None, "every earlier token counts"
        size = math.gcd(batch.page_size, _BLOCK)
        row, position = batch.flat()
        number = position // size
        # The tokens of a row follow each other, so a block begins where row or number changes.
        fresh = np.ones(len(row), np.bool_)
        fresh[1:] = (row[1:] != row[:-1]) | (number[1:] != number[:-1])
        places = (np.cumsum(fresh) - 1) * size + position % size
        page, number = np.divmod(number[fresh], batch.page_size // size)
        device = batch.slots.device
        return Segments(
            _turns(batch, row, position),
            _pages(batch, row[fresh], page),
            torch.from_numpy(number).to(device),
            torch.from_numpy(places).to(device),
            size,
        )


def _turns(batch: AttentionBatch, row: Column, position: Column) -> list[Turn]:
    """In order, the pages that begin: the first of every row together, then the second, ... One
    with which a sequence begins has no page before it, and the state of nothing: zeros."""
    begins = (position % batch.page_size == 0) & (position > 0)
    row, block = row[begins], position[begins] // batch.page_size
    first = np.maximum(1, -(-np.asarray(batch.starts) // batch.page_size))
    turn = block - first[row]
    every = [turn == number for number in range(turn.max(initial=-1) + 1)]
    return [
        Turn(_pages(batch, row[now], block[now] - 1), _pages(batch, row[now], block[now]))
        for now in every
    ]


def _pages(batch: AttentionBatch, row: Column, block: Column) -> Tensor:
    """The pages of some blocks, int64."""
    table = batch.page_table
    rows, blocks = (torch.from_numpy(index).to(table.device) for index in (row, block))
    return table[rows, blocks].long()


class LinearAttention(nn.Module):
    """Attention without a softmax, whose weights decay with the distance (Lightning Attention-2,
    Qin et al. 2024, arXiv:2401.04658; MiniMax-01, arXiv:2501.08313): with a head's decay r,

        state[t] = exp(-r) state[t - 1] + k[t]^T v[t]        float32 [head_dim, head_dim]
        out[t] = q[t] state[t]

    What a page keeps beside keys and values is the state before its first token. So a token is
    computed from its own page alone, in a product of one shape at a place of its own, wherever a
    text is cut; and the page after it gets its state when it begins, from this one alone.

        state[page] | k v | k v | k v | k v |     out of the third token of a page
                 `-----------------'              = exp(-3 r) q state + the first three, masked
    """

    rope = None

    def __init__(self, settings: spec.LinearAttention, hidden: int, site: Site) -> None:
        super().__init__()
        if site.codes is not None:
            raise ModelError(
                f"Linear attention does not read keys and values as {site.codes}: serve this model "
                "with --kv-cache-dtype auto."
            )
        self.call = self.backend = Blocks()
        self.num_heads, self.head_dim = settings.num_heads, settings.head_dim
        width = settings.num_heads * settings.head_dim
        self.project = Linear(hidden, dict.fromkeys(("query", "key", "value"), width), site)
        self.gate = Linear(hidden, {"linear_gate": width}, site)
        self.norm: nn.Module = norm(settings.norm, width, "linear_norm", site)
        self.output = Linear(width, {"linear_output": hidden}, site)
        self._activation = activation(settings.activation)
        self._decays = cache(lambda size, device: Decays.of(settings.decays, size, device))

    def forward(self, x: Tensor, step: Step, pages: Snapshots, residual: Tensor | None) -> Tensor:
        """x [T, hidden] and this layer's pages to [T, hidden], plus `residual`.

        Raises:
            ModelError: the step holds texts that are to see both ways.
        """
        if step.texts:
            raise ModelError("Linear attention sees earlier tokens only: it cannot see both ways.")
        heads = self._activation(self.project(x)).view(len(x), 3, self.num_heads, self.head_dim)
        scatter(heads[:, 1:].contiguous(), step.slots, pages.tokens)
        segments, decays = step.plans[self.call], self._decays(pages.tokens.shape[1], x.device)
        for turn in segments.turns:
            _carry(turn, pages, decays)
        attended = _attend(heads[:, 0].float(), segments, pages, decays).to(x.dtype)
        gated = sigmoid(self.gate(x)) * self.norm(attended.flatten(1))
        out: Tensor = self.output(gated, residual)
        return out


@dataclass(frozen=True, slots=True)
class Decays:
    """What is left of the past in a page of P tokens: float32."""

    from_start: Tensor
    """[heads, P, 1]: of the page's state, for each token."""
    to_end: Tensor
    """[heads, P, 1]: of each token, when the next page begins."""
    between: Tensor
    """[heads, P, P]: of token j for token i; 0 where j is later."""
    whole: Tensor
    """[heads, 1, 1]: of the page's state, when the next page begins."""

    @classmethod
    def of(cls, rates: tuple[float, ...], size: int, device: torch.device) -> Decays:
        """Powers of exp(-rate) of each head."""
        rate = torch.tensor(rates, dtype=torch.float64)[:, None, None]
        token = torch.arange(size, dtype=torch.float64)
        distance = token[:, None] - token
        powers = (
            (-rate * (token + 1)[:, None]).exp(),
            (-rate * (size - 1 - token)[:, None]).exp(),
            (-rate * distance).exp().masked_fill(distance < 0, 0),
            (-rate * size).exp(),
        )
        return cls(*(power.float().to(device) for power in powers))


def _carry(turn: Turn, pages: Snapshots, decays: Decays) -> None:
    """Give pages that begin their states."""
    for before, begun in _split(*turn):
        key, value = _keys_and_values(pages, before)
        added = (key * decays.to_end).transpose(2, 3) @ value
        pages.states[begun] = pages.states[before] * decays.whole + added


def _attend(query: Tensor, segments: Segments, pages: Snapshots, decays: Decays) -> Tensor:
    """float32 [T, heads, head_dim] to the same shape."""
    size, num_heads = segments.size, query.shape[1]
    blocks = query.new_zeros((len(segments.pages) * size, *query.shape[1:]))
    blocks[segments.places] = query
    blocks = torch.unflatten(blocks, 0, (-1, size)).transpose(1, 2)
    start = decays.from_start.view(num_heads, -1, size, 1).transpose(0, 1)
    between = torch.unflatten(decays.between, 1, (-1, size)).transpose(0, 1)
    parts = list[Tensor]()
    for new, page, number in _split(blocks, segments.pages, segments.numbers):
        key, value = _keys_and_values(pages, page)
        scores = (new @ key.transpose(2, 3)) * between[number]
        parts.append(scores @ value + (new * start[number]) @ pages.states[page])
    out = torch.cat(parts).transpose(1, 2).flatten(0, 1)
    return out[segments.places]


def _split(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(torch.split(tensor, _AT_ONCE) for tensor in tensors), strict=True)


def _keys_and_values(pages: Snapshots, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Those of whole pages int64 [n], float32 [n, heads, page_size, head_dim] each. What is not
    written yet is finite: it counts nothing."""
    kept = pages.tokens[numbers].float().permute(0, 2, 3, 1, 4)
    return kept[:, 0], kept[:, 1]
