"""Random ragged batches over random pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from baton_worker.attention import AttentionBatch, AttentionSpec
from baton_worker.attention.backends.reference import ReferenceBackend
from baton_worker.attention.lse_merge import Partial, merge
from baton_worker.attention.tree_mask import MOST_TOKENS, TreeMask
from baton_worker.kernels.page_layout import Layout

CPU = torch.device("cpu")
KERNELS = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Where Triton's kernels run: on a GPU, or in the interpreter."""


@dataclass(frozen=True)
class Problem:
    """Inputs of one `Backend.forward`."""

    call: AttentionSpec
    batch: AttentionBatch
    query: torch.Tensor
    pages: torch.Tensor

    def to(self, device: torch.device) -> Problem:
        """The same on a device."""
        names = ("query_start_loc", "seq_lens", "block_table", "slot_mapping")
        moved = {name: getattr(self.batch, name).to(device) for name in names}
        return Problem(
            replace(self.call, device=device),
            replace(self.batch, **moved),
            self.query.to(device),
            self.pages.to(device),
        )


def make_problem(
    rows: Sequence[tuple[int, int]],
    *,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 8,
    window: int | None = None,
    page_size: int = 4,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
) -> Problem:
    """`rows` are (new tokens, tokens before them); pages are handed out in a random order."""
    generator = torch.Generator().manual_seed(len(rows))
    needed = [-(-(count + start) // page_size) for count, start in rows]
    num_pages = sum(needed) + 1
    order = iter(torch.randperm(num_pages, generator=generator).tolist())
    tables = [[next(order) for _ in range(number)] for number in needed]
    counts, starts = zip(*rows, strict=True)
    num_tokens = sum(counts)
    # One product makes q, k and v, so a backend sees queries with a wider row stride.
    heads_and_more = torch.randn(num_tokens, sum(heads) + 3, head_dim, generator=generator)
    shape = (num_pages, page_size, 2, heads[1], head_dim)
    return Problem(
        AttentionSpec(heads[0], heads[1], head_dim, head_dim**-0.5, window, dtype, device),
        AttentionBatch.build(counts, starts, tables, page_size, device),
        heads_and_more.to(device, dtype)[:, : heads[0]],
        torch.randn(shape, generator=generator).to(device, dtype),
    )


@pytest.fixture
def problem() -> object:
    return make_problem


ON_A_CPU = ["cpu", "grouped", "reference"]
"""The others have tests of their own: in an interpreter, against stand-ins, or fewer of them."""


def sinks_for(given: Problem, call: AttentionSpec) -> torch.Tensor | None:
    """What `forward` takes for a call with sinks, else None."""
    if not (call.sinks or call.token_sinks):
        return None
    shape = given.query.shape[1 - call.token_sinks : 2]
    return torch.linspace(-1, 2, shape.numel()).view(shape).to(given.query)


def kept(given: Problem, call: AttentionSpec) -> torch.Tensor:
    """Its pages as a call wants them: keys that begin with their values, or narrower values, each
    of them behind its key."""
    if call.latent:
        return given.pages[:, :, :1, : call.num_kv_heads]
    if call.value_dim is None:
        return given.pages
    key, value = given.pages.unbind(2)
    return torch.cat((key, value[..., : call.value_dim]), -1)[:, :, None]


def as_the_reference(
    backend: Any, given: Problem, call: AttentionSpec, layout: Layout = Layout.NHD
) -> None:
    """Check short floats over pages in a layout; `refuses` is not asked."""
    call, stored = replace(call, layout=layout), kept(given, call)
    pages = layout.zeros(tuple(stored.shape), dtype=stored.dtype, device=call.device)
    plan = backend.plan(given.batch, call)
    ours = backend.forward(plan, given.query, pages.copy_(stored))
    reference = ReferenceBackend()
    expected = reference.forward(reference.plan(given.batch, call), given.query, stored)
    assert ours.dtype is given.query.dtype and ours.shape == expected.shape
    torch.testing.assert_close(ours, expected, rtol=0.0, atol=0.02)


def in_parts(
    backend: Any, problem: Any, dtype: torch.dtype = torch.float32, **features: Any
) -> None:
    """Check that ranges of keys, one of them empty for each row, merge to the whole; a sink may be
    in one of the parts or come last."""
    rows, cuts = [(1, 30), (50, 0), (1, 600), (4, 9), (1, 3)], [(11, 20), (0, 25), (256, 257),
                                                                 (13, 13), (9, 12)]  # fmt: skip
    given = problem(rows, heads=(6, 2), head_dim=16, page_size=16, dtype=dtype)
    call = replace(given.call, **features)
    if (reason := backend.refuses(replace(call, partial=True))) is not None:
        pytest.skip(reason)
    pages, sinks = kept(given, call), sinks_for(given, call)
    whole = backend.forward(backend.plan(given.batch, call), given.query, pages, sinks)

    def part(ranges: tuple[tuple[int, int], ...], sinks: torch.Tensor | None) -> Partial:
        kind = replace(call, partial=True)
        if sinks is None:
            kind = replace(kind, sinks=False, token_sinks=False)
        plan = backend.plan(replace(given.batch, ranges=ranges), kind)
        lse = torch.full((len(given.query), call.num_heads), torch.nan, device=call.device)
        return Partial(backend.forward(plan, given.query, pages, sinks, lse), lse)

    ranges = [tuple((0, a) for a, _ in cuts), tuple(cuts), tuple((b, 10_000) for _, b in cuts)]
    parts = [part(some, None) for some in ranges]
    nothing = [p.lse.isneginf().all(1) for p in parts]
    assert nothing[1][52:56].all() and not nothing[1][0], "one is empty, one is not"
    for p, empty in zip(parts, nothing, strict=True):
        assert not p.out[empty].any() and not p.lse.isnan().any()
    tolerance = {"rtol": 0.0, "atol": 1e-5 if dtype is torch.float32 else 0.02}
    merged = merge(parts, sinks)
    torch.testing.assert_close(merged.out, whole, **tolerance)
    with_sinks = merge([part(ranges[0], sinks), *parts[1:]])
    torch.testing.assert_close(with_sinks.out, whole, **tolerance)
    torch.testing.assert_close(with_sinks.lse, merged.lse, rtol=0.0, atol=1e-5)


def branches(parents: Sequence[int]) -> list[list[int]]:
    """Of each token of a tree, the numbers from the root to it."""
    paths = list[list[int]]()
    for number, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), number])
    return paths


def over_branches(backend: Any, problem: Any, **features: Any) -> None:
    """Check trees against ordinary attention over each branch, its keys one behind the other."""
    rows, generator = [(5, 20), (70, 3), (33, 280), (1, 9), (64, 2)], torch.Generator()
    given = problem(rows, heads=(6, 2), page_size=16)
    call = replace(given.call, tree=True, **features)
    if (reason := backend.refuses(call)) is not None:
        pytest.skip(reason)
    parents = [
        [int(torch.randint(-1, n, (), generator=generator)) for n in range(count)]
        if count <= MOST_TOKENS
        else None
        for count, _ in rows
    ]
    batch = replace(given.batch, trees=TreeMask.build(given.batch.query_lens, parents, call.device))
    sinks, pages = sinks_for(given, call), kept(given, call)
    ours = backend.forward(backend.plan(batch, call), given.query, pages, sinks)
    first = 0
    for row, (count, start) in enumerate(rows):
        table = given.batch.block_table[row].long()
        tokens = pages[table].flatten(0, 1)
        tree = parents[row]
        for path in [list(range(count))] if tree is None else branches(tree):
            text = torch.cat((tokens[:start], tokens[start + torch.tensor(path)]))
            query = given.query[first + torch.tensor(path)]
            expected = _attended(query, text, start, replace(call, tree=False), sinks)
            shown = slice(None) if tree is None else slice(-1, None)
            torch.testing.assert_close(
                ours[first + torch.tensor(path)][shown], expected[shown], rtol=0.0, atol=1e-5
            )
        first += count


def _attended(
    query: torch.Tensor,
    text: torch.Tensor,
    start: int,
    call: AttentionSpec,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Of the last tokens of a text that is one page."""
    batch = AttentionBatch.build([len(query)], [start], [[0]], len(text), query.device)
    reference = ReferenceBackend()
    return reference.forward(reference.plan(batch, call), query, text[None], sinks)


_SPANNED: tuple[dict[str, Any], ...] = (
    {},
    {"window": 20},
    {"softcap": 3.0, "sinks": True},
)


def both_ways(backend: Any, problem: Any, dtype: torch.dtype) -> None:
    """Check spans of new tokens that see one another, beside other rows, as a dense mask says."""
    rows, spans = [(1, 30), (90, 5), (4, 9), (70, 300)], {1: (9, 75), 3: (310, 368)}
    last = np.concatenate([np.arange(start, start + count) for count, start in rows])
    for row, (first, end) in spans.items():
        at = sum(count for count, _ in rows[:row]) - rows[row][1]
        last[at + first : at + end] = end - 1
    for features in _SPANNED:
        given = problem(rows, heads=(6, 2), head_dim=16, page_size=16, dtype=dtype)
        call = replace(given.call, spans=True, **features)
        assert backend.refuses(call) is None
        sinks, batch = sinks_for(given, call), given.batch.with_last_keys(last)
        ours = backend.forward(backend.plan(batch, call), given.query, given.pages, sinks)
        tolerance = 1e-5 if dtype is torch.float32 else 0.02
        expected = _dense(replace(given, call=call), last.tolist(), sinks)
        torch.testing.assert_close(ours.float(), expected, rtol=0.0, atol=tolerance)


def _dense(given: Problem, last: list[int], sinks: torch.Tensor | None) -> torch.Tensor:
    """Attention token by token; `last` is the position of the last key that each sees."""
    call, batch, out = given.call, given.batch, list[torch.Tensor]()
    for row, (count, start) in enumerate(zip(batch.query_lens, batch.num_computed, strict=True)):
        key, value = given.pages[batch.block_table[row]].flatten(0, 1).float().unbind(1)
        for at in range(start, start + count):
            token = len(out)
            seen = slice(max(0, at + 1 - (call.window or at + 1)), last[token] + 1)
            near, kept = (x[seen].repeat_interleave(call.group, 1) for x in (key, value))
            scores = torch.einsum("hd,khd->hk", given.query[token].float(), near) * call.scale
            if call.softcap is not None:
                scores = call.softcap * torch.tanh(scores / call.softcap)
            if sinks is not None:
                scores = torch.cat((scores, sinks.float()[:, None]), 1)
            weights = scores.softmax(1)[:, : len(near)]
            out.append(torch.einsum("hk,khd->hd", weights, kept))
    return torch.stack(out).flatten(1)
