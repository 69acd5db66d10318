"""Paged attention written to be obviously right: row by row, in float32, with an explicit mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton_worker.attention.base import AttentionBatch, AttentionCall


@dataclass(frozen=True, slots=True)
class _Plan:
    batch: AttentionBatch
    call: AttentionCall


class ReferenceBackend:
    """softmax(scale * Q K^T + mask) V for each row (Vaswani et al. 2017, arXiv:1706.03762)."""

    def refuses(self, call: AttentionCall) -> str | None:
        """Never: it is the fallback and the oracle of the other backends."""
        return None

    def plan(self, batch: AttentionBatch, call: AttentionCall) -> _Plan:
        """Nothing to prepare."""
        return _Plan(batch, call)

    def forward(self, plan: _Plan, query: Tensor, pages: Tensor) -> Tensor:
        """See `Backend.forward`."""
        batch, rows = plan.batch, []
        for row, new in enumerate(torch.split(query, list(batch.counts))):
            length = batch.starts[row] + batch.counts[row]
            history = pages[batch.page_table[row]].flatten(0, 1)[:length]
            key, value = history.unbind(1)
            rows.append(_attend(new, key, value, batch.starts[row], plan.call))
        return torch.cat(rows).to(query.dtype)


def _attend(query: Tensor, key: Tensor, value: Tensor, start: int, call: AttentionCall) -> Tensor:
    """query [n, heads, dim] at positions start.., key and value [length, kv_heads, dim]."""
    group = call.num_heads // call.num_kv_heads
    key = key.float().repeat_interleave(group, dim=1)
    value = value.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), key) * call.scale
    mask = visible(start, query.shape[0], key.shape[0], call.window, query.device)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, value).flatten(1)


def visible(
    start: int, count: int, length: int, window: int | None, device: torch.device
) -> Tensor:
    """bool [count, length]: may the token at position start + i see position j?"""
    query = torch.arange(start, start + count, device=device)[:, None]
    key = torch.arange(length, device=device)[None, :]
    causal = key <= query
    return causal if window is None else causal & (key > query - window)
