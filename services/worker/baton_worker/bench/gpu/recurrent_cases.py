"""Kernels of recurrent layers, on a prompt and on rows that decode. The references take one token
after the other, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from baton_worker.attention import AttentionBatch
from baton_worker.bench.gpu.kernel_case import KernelCase, Sizes
from baton_worker.kernels.recurrent.delta import Shape as DeltaShape
from baton_worker.kernels.recurrent.ssm_states import Fading, Snapshots
from baton_worker.kernels.recurrent.ssm_states import Shape as StatesShape
from baton_worker.layers.ssm.page_segments import DeviceCut

_SEED = 1


class _Step(NamedTuple):
    """New tokens of rows, behind others."""

    name: str
    counts: list[int]
    starts: list[int]


def cases(device: torch.device, dtype: torch.dtype, sizes: Sizes) -> Iterator[KernelCase]:
    """All kernels, one after the other."""
    size = sizes.page_size
    # Each row decodes at a place of its own; the first of them begins a page.
    places = [size + row % size for row in range(sizes.rows)]
    steps = (
        _Step(f"{sizes.prompt} tokens", [sizes.prompt], [0]),
        _Step(f"{sizes.rows} rows", [1] * sizes.rows, places),
    )
    for step in steps:
        for exact in (False, True) if max(step.counts) > 1 else (False,):
            yield _Maker(device, dtype, sizes, step).states(exact=exact)
            yield _Maker(device, dtype, sizes, step).delta(exact=exact)


class _Token(NamedTuple):
    """A token that a reference takes."""

    page: int
    place: int
    query: int
    """Its index among the new tokens; negative if it is none of them."""


class _Maker:
    """Inputs of one step."""

    def __init__(self, device: torch.device, dtype: torch.dtype, sizes: Sizes, step: _Step) -> None:
        self._device, self._dtype, self._sizes, self._step = device, dtype, sizes, step
        self._generator = torch.Generator(device).manual_seed(_SEED)
        self._near = 1e-5 if dtype is torch.float32 else 2e-2
        lengths = [count + start for count, start in zip(step.counts, step.starts, strict=True)]
        each = -(-max(lengths) // sizes.page_size)
        self._num_pages = each * len(lengths)
        order = torch.randperm(self._num_pages, generator=torch.Generator().manual_seed(_SEED))
        self._tables = order.view(-1, each).tolist()
        batch = AttentionBatch.build(
            step.counts, step.starts, self._tables, sizes.page_size, device
        )
        self._segments = DeviceCut().plan(batch, DeviceCut()).compute()

    def states(self, *, exact: bool) -> KernelCase:
        """The states and outputs of Mamba-2, whose decays a layer has computed. `exact`: page by
        page, as with --exact."""
        from baton_worker.kernels.triton.recurrent.ssm_states import TritonStates

        shape = self._sizes.states
        snapshots = self._pages(shape.key + shape.groups * shape.key_dim + shape.heads, shape)
        each = (self._num_pages, shape.heads, self._sizes.page_size)
        decay, weight = -0.2 * self._uniform(*each), self._uniform(*each)
        query = self._normal(self._tokens, shape.groups, shape.key_dim).to(self._dtype).float()
        faded, group = decay.cumsum(-1), shape.heads // shape.groups
        chains, kernel = self._segments.chains, TritonStates(shape, exact=exact)
        fading = Fading(faded[chains.pages], weight[chains.pages])

        def reference() -> Tensor:
            rows = snapshots.tokens.flatten(2)
            keys = rows[..., shape.key :][..., : shape.groups * shape.key_dim]
            values = rows[..., shape.value :][..., : shape.heads * shape.value_dim]
            keys = torch.unflatten(keys, -1, (shape.groups, -1)).repeat_interleave(group, 2)
            values = torch.unflatten(values, -1, (shape.heads, -1))
            queries = query.repeat_interleave(group, 1).double()
            out = queries.new_empty(self._tokens, shape.heads, shape.value_dim)
            for state, (page, place, number) in self._walk(snapshots.states):
                key, value = keys[page, place].double(), values[page, place].double()
                state *= decay[page, :, place].double().exp()[:, None, None]
                added = key * weight[page, :, place, None].double()
                state += added[:, :, None] * value[:, None]
                if number >= 0:
                    out[number] = (queries[number, :, None] @ state)[:, 0]
            return out

        run = lambda: kernel.walk(snapshots, query, chains, fading)  # noqa: E731
        read = shape.groups * shape.key_dim + shape.heads * shape.value_dim
        name = "mamba-2 states, exact" if exact else "mamba-2 states"
        return self._case(name, run, reference, snapshots, read, 2)

    def delta(self, *, exact: bool) -> KernelCase:
        """The delta rule of Qwen3-Next, with its strengths and decays. `exact`: token by token, as
        with --exact."""
        from baton_worker.kernels.triton.recurrent.delta import TritonDelta

        shape, size = self._sizes.delta, self._sizes.page_size
        snapshots = self._pages(shape.value + shape.heads * (shape.value_dim + 2), shape)
        strength = self._uniform(self._num_pages, size, shape.heads)
        decay = -0.2 * self._uniform(*strength.shape, shape.channels)
        query = self._normal(self._tokens, shape.key_heads, shape.key_dim).to(self._dtype).float()
        chains, kernel = self._segments.chains, TritonDelta(shape, exact=exact)
        group = shape.heads // shape.key_heads
        gates = strength[chains.pages], decay[chains.pages]

        def reference() -> Tensor:
            rows = snapshots.tokens.flatten(2)
            keys = rows[..., shape.key :][..., : shape.key_heads * shape.key_dim]
            keys = torch.unflatten(keys, -1, (shape.key_heads, -1)).repeat_interleave(group, 2)
            values = rows[..., shape.value :][..., : shape.heads * shape.value_dim]
            values = torch.unflatten(values, -1, (shape.heads, -1))
            queries = normalize(query.repeat_interleave(group, 1).double(), dim=-1)
            queries *= shape.key_dim**-0.5
            out = queries.new_empty(self._tokens, shape.heads, shape.value_dim)
            for state, (page, place, number) in self._walk(snapshots.states):
                key = normalize(keys[page, place].double(), dim=-1)
                state *= decay[page, place].double().exp()[..., None]
                news = values[page, place].double() - (key[:, None] @ state)[:, 0]
                news *= strength[page, place, :, None].double()
                state += key[:, :, None] * news[:, None]
                if number >= 0:
                    out[number] = (queries[number, :, None] @ state)[:, 0]
            return out

        run = lambda: kernel(snapshots, query, chains, *gates)  # noqa: E731
        read = shape.key_heads * shape.key_dim + shape.heads * shape.value_dim
        name = "gated delta rule, exact" if exact else "gated delta rule"
        return self._case(name, run, reference, snapshots, read, 3)

    @property
    def _tokens(self) -> int:
        return sum(self._step.counts)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self._device)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._generator, device=self._device)

    def _pages(self, width: int, shape: StatesShape | DeltaShape) -> Snapshots:
        """Rows of so many numbers, and states."""
        tokens = self._normal(self._num_pages, self._sizes.page_size, 1, 1, width)
        state = (shape.heads, shape.key_dim, shape.value_dim)
        return Snapshots(tokens.to(self._dtype), self._normal(self._num_pages, *state))

    def _walk(self, states: Tensor) -> Iterator[tuple[Tensor, _Token]]:
        """Every token from the start of the page with which the chain of its row begins, and the
        state before it, float64, to be changed to that after it."""
        size, begin = self._sizes.page_size, 0
        for table, start, count in zip(
            self._tables, self._step.starts, self._step.counts, strict=True
        ):
            first = max(0, start - 1) // size if start % size == 0 else start // size
            state = states[table[first]].double()
            for position in range(first * size, start + count):
                query = begin + position - start if position >= start else -1
                yield state, _Token(table[position // size], position % size, query)
            begin += count

    def _case(
        self,
        name: str,
        run: Callable[[], Tensor],
        reference: Callable[[], Tensor],
        snapshots: Snapshots,
        width: int,
        products: int,
    ) -> KernelCase:
        """`width`: numbers of a row that are read. `products`: of each number of a state, for a
        token. A row's first state is read, and each other written."""
        chains, numbers = self._segments.chains, snapshots.states[0].numel()
        pages = int((chains.stops - chains.starts).sum())
        rows = pages * self._sizes.page_size * width * snapshots.tokens.itemsize
        nbytes = rows + pages * numbers * snapshots.states.itemsize
        flops = 2 * products * numbers * self._tokens
        title = f"{name}, {self._step.name}"
        return KernelCase(title, run, reference, nbytes, flops, self._near)
