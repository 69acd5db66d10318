"""Linear attention against the recurrence that it stands for, token by token."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton.errors import ModelError
from baton_worker.attention import AttentionBatch
from baton_worker.kernels.pages import CODES
from baton_worker.kv.cache import Snapshots
from baton_worker.layers.layer import Site
from baton_worker.layers.linear_attention import LinearAttention, _attend, _carry
from baton_worker.layers.step import Step
from baton_worker.models import spec
from tests.fakes.weights import fill

pytestmark = pytest.mark.usefixtures("seeded")
CPU = torch.device("cpu")
SETTINGS = spec.LinearAttention(3, 8, (0.5, 0.1, 1e-3), spec.Norm(1e-6))
Weights = dict[str, Tensor]


def made(site: Site) -> tuple[LinearAttention, Weights]:
    layer = LinearAttention(SETTINGS, 10, site)
    return layer, fill(layer)


def recurrent(x: Tensor, w: Weights) -> Tensor:
    """One text [T, hidden]: a state that every token changes."""
    query, key, value = (
        F.silu(x @ w[f"{role}.weight"].T).view(-1, 3, 8) for role in ("query", "key", "value")
    )
    state, rows = torch.zeros(3, 8, 8), list[Tensor]()
    left = torch.tensor([math.exp(-rate) for rate in SETTINGS.decays])[:, None, None]
    for q, k, v in zip(query, key, value, strict=True):
        state = left * state + k[:, :, None] * v[:, None]
        rows.append((q[:, None] @ state).flatten())
    normed = F.rms_norm(torch.stack(rows), (24,), w["linear_norm.weight"], 1e-6)
    gated = torch.sigmoid(x @ w["linear_gate.weight"].T) * normed
    return gated @ w["linear_output.weight"].T


def kept(num_pages: int, page_size: int) -> Snapshots:
    return Snapshots(torch.zeros(num_pages, page_size, 2, 3, 8), torch.zeros(num_pages, 3, 8, 8))


def run(
    layer: LinearAttention, texts: list[Tensor], starts: list[int], tables: Any, pages: Snapshots
) -> tuple[Tensor, ...]:
    """One ragged step: the new tokens of each text, and what they become."""
    counts = [len(text) for text in texts]
    batch = AttentionBatch.build(counts, starts, tables, pages.tokens.shape[1], CPU)
    step = Step(batch.slots, {}, {layer.call: layer.backend.plan(batch, layer.call)})
    with torch.inference_mode():
        out: Tensor = layer(torch.cat(texts), step, pages, None)
    return out.split(counts)


@pytest.mark.parametrize("chunk", [1, 7, 16, 70])
@pytest.mark.parametrize("page_size", [1, 4, 24, 32])
def test_a_text_in_chunks_is_the_recurrence(site: Site, chunk: int, page_size: int) -> None:
    layer, weights = made(site)
    x, num_pages = torch.randn(70, 10), -(-70 // page_size)
    pages, table = kept(num_pages + 1, page_size), [list(range(num_pages, 0, -1))]
    rows = [run(layer, [x[a : a + chunk]], [a], table, pages)[0] for a in range(0, 70, chunk)]
    torch.testing.assert_close(torch.cat(rows), recurrent(x, weights), atol=2e-4, rtol=2e-4)


def test_texts_of_a_ragged_step_do_not_mix(site: Site) -> None:
    layer, weights = made(site)
    texts = [torch.randn(length, 10) for length in (21, 9, 4, 13)]
    cuts, pages = (20, 3, 0, 8), kept(30, 4)
    tables = [list(range(row, 30, 4)) for row in range(4)]
    early = [row for row in range(4) if cuts[row]]
    first = run(
        layer, [texts[r][: cuts[r]] for r in early], [0] * 3, [tables[r] for r in early], pages
    )
    last = run(layer, [t[c:] for t, c in zip(texts, cuts, strict=True)], list(cuts), tables, pages)
    begun = dict(zip(early, first, strict=True))
    for row, text in enumerate(texts):
        ours = torch.cat([begun[row], last[row]]) if row in begun else last[row]
        torch.testing.assert_close(ours, recurrent(text, weights), atol=2e-4, rtol=2e-4)


def test_bits_depend_on_no_cut_and_no_neighbour(site: Site) -> None:
    """From queries, keys and values on, beside texts of other lengths."""
    layer, _ = made(site)
    heads = torch.randn(3, 70, 3, 8)
    results = list[Tensor]()
    for cut in (0, 1, 16, 33, 69):
        pages, parts = kept(20, 16), list[Tensor]()
        for begin, end in ((0, cut), (cut, 70)):
            if begin == end:
                continue
            tables = [[9, 3, 7, 1, 5], [0, 2, 4, 6, 8]]
            batch = AttentionBatch.build([end - begin, 2], [begin, 0], tables, 16, CPU)
            new = torch.cat((heads[:, begin:end], heads[:, 3:5]), dim=1)
            pages.tokens.view(-1, 2, 3, 8)[batch.slots] = new[1:].transpose(0, 1)
            segments, decays = layer.backend.plan(batch, layer.call), layer._decays(16, CPU)
            for turn in segments.turns:
                _carry(turn, pages, decays)
            parts.append(_attend(new[0], segments, pages, decays)[:-2])
        results.append(torch.cat(parts))
    assert all(torch.equal(result, results[0]) for result in results)


def test_what_comes_later_in_a_page_counts_nothing(site: Site) -> None:
    """A copied page holds tokens of somebody else behind those that it was copied for."""
    layer, weights = made(site)
    x, pages = torch.randn(6, 10), kept(3, 4)
    run(layer, [x[:5]], [0], [[2, 0]], pages)
    pages.tokens[0, 1:] = 1e4
    [row] = run(layer, [x[5:]], [5], [[2, 0]], pages)
    torch.testing.assert_close(row, recurrent(x, weights)[5:], atol=2e-4, rtol=2e-4)


def test_what_cannot_work_is_refused(site: Site) -> None:
    for codes in CODES.values():
        with pytest.raises(ModelError, match="--kv-cache-dtype auto"):
            LinearAttention(SETTINGS, 10, replace(site, codes=codes))
    layer, _ = made(site)
    texts: Any = (object(),)
    step = Step(torch.zeros(1, dtype=torch.int64), {}, {}, texts=texts)
    with pytest.raises(ModelError, match="cannot see both ways"):
        layer(torch.zeros(1, 10), step, kept(1, 4), None)
