"""Attention over pages: decode steps, prompts and both, with and without a window."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch, AttentionSpec
from baton_worker.attention.backends.reference import ReferenceBackend
from baton_worker.attention.backends.triton import TritonBackend
from baton_worker.bench.gpu.case_inputs import SEED, CaseInputs
from baton_worker.bench.gpu.kernel_case import KernelCase


def cases(inputs: CaseInputs) -> Iterator[KernelCase]:
    """Steps as a server has them."""
    sizes = inputs.sizes
    ones, last = [1] * sizes.rows, [sizes.context - 1] * sizes.rows
    yield _attention(inputs, "decode", ones, last)
    yield _attention(inputs, "prompt", [sizes.prompt], [0])
    mixed = [sizes.prompt // 2, *ones]
    yield _attention(inputs, "mixed", mixed, [sizes.context] * len(mixed))
    yield _attention(inputs, "window", ones, last, window=17)


def _attention(
    inputs: CaseInputs, name: str, counts: list[int], starts: list[int], window: int | None = None
) -> KernelCase:
    """Rows of `counts` new tokens behind `starts` others."""
    sizes = inputs.sizes
    lengths = [count + start for count, start in zip(counts, starts, strict=True)]
    pages, tables = _pages(inputs, lengths)
    query = inputs.random(sum(counts), sizes.heads, sizes.head_dim)
    spec = AttentionSpec(
        sizes.heads,
        sizes.kv_heads,
        sizes.head_dim,
        sizes.head_dim**-0.5,
        window,
        inputs.dtype,
        inputs.device,
    )
    batch = AttentionBatch.build(counts, starts, tables, sizes.page_size, inputs.device)
    backend, twin = TritonBackend(), ReferenceBackend()
    plan = backend.plan(batch, spec)

    def reference() -> Tensor:
        wide = torch.nan_to_num(pages.double(), 0.0)
        return twin.forward(twin.plan(batch, spec), query.double(), wide)

    num_keys = sum(min(n, window or n) for n in lengths)
    nbytes = 2 * query.nbytes + num_keys * 2 * sizes.kv_heads * sizes.head_dim * pages.itemsize
    pairs = sum(
        count * (start + (count + 1) / 2) for count, start in zip(counts, starts, strict=True)
    )
    flops = int(4 * pairs * sizes.heads * sizes.head_dim) if window is None else 0
    run = partial(backend.forward, plan, query, pages)
    return KernelCase(f"attention, {name}", run, reference, nbytes, flops, inputs.tolerance)


def _pages(inputs: CaseInputs, lengths: list[int]) -> tuple[Tensor, list[list[int]]]:
    """Pages in a random order, and the block table of each row. NaN where no row has a token: a
    kernel that reads one shows it."""
    sizes = inputs.sizes
    each = [-(-length // sizes.page_size) for length in lengths]
    order = torch.randperm(sum(each) + 1, generator=torch.Generator().manual_seed(SEED))
    tables = [part.tolist() for part in torch.split(order[: sum(each)], each)]
    shape = (sum(each) + 1, sizes.page_size, 2, sizes.kv_heads, sizes.head_dim)
    pages = inputs.random(*shape)
    pages[order[-1]] = torch.nan
    for table, length in zip(tables, lengths, strict=True):
        if rest := length % sizes.page_size:
            pages[table[-1], rest:] = torch.nan
    return pages, tables
