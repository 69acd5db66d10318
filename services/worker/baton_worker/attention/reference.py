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
        """Nothing that has a meaning: it is the fallback and the oracle of the other backends."""
        if call.latent and call.codes:
            return f"no page holds {call.codes} latents"
        return None

    def plan(self, batch: AttentionBatch, call: AttentionCall) -> _Plan:
        """Nothing to prepare."""
        return _Plan(batch, call)

    def forward(
        self, plan: _Plan, query: Tensor, pages: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """See `Backend.forward`."""
        batch, rows = plan.batch, []
        sinks = None if sinks is None else sinks.expand(query.shape[:2])
        for row, new in enumerate(torch.split(query, list(batch.counts))):
            length = batch.starts[row] + batch.counts[row]
            history = pages[batch.page_table[row]].flatten(0, 1)[:length]
            if plan.call.codes is not None:
                history = plan.call.codes.decode(history, torch.float32)
            key, value = history[:, 0], history[:, -1]
            first = sum(batch.counts[:row])
            sunk = None if sinks is None else sinks[first : first + batch.counts[row]]
            rows.append(_attend(new, key, value, batch.starts[row], plan.call, sunk))
        return torch.cat(rows).to(query.dtype)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start: int,
    call: AttentionCall,
    sinks: Tensor | None,
) -> Tensor:
    """query [n, heads, dim] at positions start.., key and value [length, kv_heads, dim]."""
    group = call.num_heads // call.num_kv_heads
    key = key.float().repeat_interleave(group, dim=1)
    value = value.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), key) * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.slopes is not None:
        scores = scores + alibi(call.slopes, start, query.shape[0], key.shape[0], query.device)
    mask = visible(start, query.shape[0], key.shape[0], call.window, query.device)
    if call.chunk is not None:
        mask &= same_chunk(start, query.shape[0], key.shape[0], call.chunk, query.device)
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().T[..., None]), dim=-1)
    weights = scores.softmax(dim=-1)[..., : key.shape[0]]
    return torch.einsum("hqk,khd->qhd", weights, value).flatten(1)


def alibi(
    slopes: tuple[float, ...], start: int, count: int, length: int, device: torch.device
) -> Tensor:
    """float32 [heads, count, length]: slope * (position of the key - position of the query)."""
    query = torch.arange(start, start + count, device=device)[:, None]
    behind = torch.arange(length, device=device)[None, :] - query
    return torch.tensor(slopes, device=device)[:, None, None] * behind


def same_chunk(start: int, count: int, length: int, chunk: int, device: torch.device) -> Tensor:
    """bool [count, length]: are position start + i and position j in one chunk of positions?"""
    query = torch.arange(start, start + count, device=device)[:, None]
    return query // chunk == torch.arange(length, device=device)[None, :] // chunk


def visible(
    start: int, count: int, length: int, window: int | None, device: torch.device
) -> Tensor:
    """bool [count, length]: may the token at position start + i see position j?"""
    query = torch.arange(start, start + count, device=device)[:, None]
    key = torch.arange(length, device=device)[None, :]
    causal = key <= query
    return causal if window is None else causal & (key > query - window)
