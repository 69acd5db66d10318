"""Layers that carry a state, run alone over pages of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.attention import AttentionBatch
from baton_worker.attention.backend import DevicePlan
from baton_worker.kernels.recurrent.ssm_states import Snapshots
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.mixer import Carrying


def empty(settings: spec.Recurrent, num_pages: int, page_size: int) -> Snapshots:
    """Pages of nothing."""
    assert settings.state is not None
    tokens = torch.zeros(num_pages, page_size, *settings.row)
    return Snapshots(tokens, torch.zeros(num_pages, *settings.state))


def planned(layer: Carrying, batch: AttentionBatch) -> Any:
    """What the layer reads of a step."""
    plan = layer.backend.plan(batch, layer.call)
    return plan.compute() if isinstance(plan, DevicePlan) else plan


def run(
    layer: Carrying, texts: list[Tensor], starts: list[int], tables: Any, pages: Snapshots
) -> tuple[Tensor, ...]:
    """One ragged step: the new tokens of each text, and what they become."""
    counts = [len(text) for text in texts]
    device = pages.tokens.device
    batch = AttentionBatch.build(counts, starts, tables, pages.tokens.shape[1], device)
    step = ForwardContext(batch.slot_mapping, {}, {layer.call: planned(layer, batch)})
    with torch.inference_mode():
        out: Tensor = layer(torch.cat(texts), step, pages, None)
    return out.split(counts)


def in_chunks(
    layer: Carrying, settings: spec.Recurrent, x: Tensor, chunk: int, page_size: int
) -> Tensor:
    """One text [T, hidden], so many tokens at a time, over pages in reverse."""
    num_pages = -(-len(x) // page_size)
    pages, table = empty(settings, num_pages + 1, page_size), [list(range(num_pages, 0, -1))]
    chunks = range(0, len(x), chunk)
    return torch.cat([run(layer, [x[a : a + chunk]], [a], table, pages)[0] for a in chunks])


def ragged(
    layer: Carrying,
    settings: spec.Recurrent,
    texts: list[Tensor],
    cuts: Sequence[int],
    page_size: int = 4,
) -> list[Tensor]:
    """Texts in two steps, each cut where it is said; pages of all of them in turn."""
    count, per_text = len(texts), -(-max(map(len, texts)) // page_size)
    pages = empty(settings, count * per_text, page_size)
    tables = [list(range(row, count * per_text, count)) for row in range(count)]
    early = [row for row in range(count) if cuts[row]]
    begun = [texts[row][: cuts[row]] for row in early]
    first = run(layer, begun, [0] * len(early), [tables[row] for row in early], pages)
    rest = [text[cut:] for text, cut in zip(texts, cuts, strict=True)]
    last = run(layer, rest, list(cuts), tables, pages)
    before = dict(zip(early, first, strict=True))
    return [torch.cat([before.get(row, out[:0]), out]) for row, out in enumerate(last)]
