"""Reference paged attention: row by row, in float32, with an explicit mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.attention_spec import AttentionSpec
from baton_worker.attention.backend import fits
from baton_worker.attention.tree_mask import AHEAD, MOST_TOKENS
from baton_worker.kernels.kv_pages import parts
from baton_worker.kernels.page_layout import EVERY


@dataclass(frozen=True, slots=True)
class _Plan:
    batch: AttentionBatch
    call: AttentionSpec


class ReferenceBackend:
    """softmax(scale * Q K^T + mask) V for each row (Vaswani et al. 2017, arXiv:1706.03762)."""

    layouts = EVERY
    capture_blocker = "reference attention goes from row to row on the host"
    launch_blocker = None

    def refuses(self, call: AttentionSpec) -> str | None:
        """Refuses only meaningless calls: it is the fallback and the oracle of the other
        backends."""
        if call.latent and call.codes:
            return f"no page holds {call.codes} latents"
        return None

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> _Plan:
        """Nothing to prepare."""
        assert fits(batch, call)
        return _Plan(batch, call)

    def forward(
        self,
        plan: _Plan,
        query: Tensor,
        pages: Tensor,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> Tensor:
        """See `Backend.forward`."""
        call, out = plan.call, query.new_empty((*query.shape[:2], plan.call.width))
        sums = query.new_empty(query.shape[:2], dtype=torch.float32) if lse is None else lse
        for row in range(len(plan.batch.query_lens)):
            new, length = _new_tokens(plan.batch, row), int(plan.batch.seq_lens[row])
            history = pages[plan.batch.block_table[row]].flatten(0, 1)[:length]
            key, value = parts(
                history, call.head_dim, call.codes, torch.float32, latent=call.latent
            )
            scores = _scores(query[new], key, plan.batch, row, call)
            if sinks is not None:
                sink_scores = sinks.expand(query.shape[:2])[new]
                scores = torch.cat((scores, sink_scores.float().T[..., None]), dim=-1)
            sums[new] = scores.logsumexp(-1).T
            weights = scores.softmax(-1)[..., :length]
            weights = weights.masked_fill(scores.isneginf().all(-1, keepdim=True), 0.0)
            value = value[..., : call.width].repeat_interleave(call.group, dim=1)
            out[new] = torch.einsum("hqk,khd->qhd", weights, value).to(query.dtype)
        return out.flatten(1)


def _new_tokens(batch: AttentionBatch, row: int) -> slice:
    first = sum(batch.query_lens[:row])
    return slice(first, first + batch.query_lens[row])


def _scores(
    query: Tensor, key: Tensor, batch: AttentionBatch, row: int, call: AttentionSpec
) -> Tensor:
    """Scores of query [n, heads, dim] and key [length, kv_heads, dim]: float32 [heads, n,
    length]."""
    key = key.repeat_interleave(call.group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), key) * call.scale
    at, places = _positions(batch, row, query.device)
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.slopes is not None:
        slopes = torch.tensor(call.slopes, device=query.device)[:, None, None]
        scores = scores + slopes * (places - at[:, None])
    last = at if batch.last_keys is None else batch.last_keys[_new_tokens(batch, row)]
    mask = visible(at, places, call, last)
    if batch.ranges is not None:
        index = torch.arange(key.shape[0], device=query.device)
        mask = mask & (index >= batch.ranges[row][0]) & (index < batch.ranges[row][1])
    return scores.masked_fill(~mask, float("-inf"))


def _positions(batch: AttentionBatch, row: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Positions of a row's new tokens, int64 [n], and of their keys, int64 [n, length]."""
    count, start = batch.query_lens[row], batch.num_computed[row]
    at = torch.arange(start, start + count, device=device)
    places = torch.arange(start + count, device=device).repeat(count, 1)
    if batch.trees is not None:
        new = _new_tokens(batch, row)
        depths, ancestors = batch.trees.depths[new].tolist(), batch.trees.ancestors[new].tolist()
        for i in range(count):
            at[i] = start + depths[i]
            for j in range(count):
                is_ancestor = j >= MOST_TOKENS or ancestors[i] >> j & 1
                places[i, start + j] = start + depths[j] if is_ancestor else AHEAD
    return at, places


def visible(query: Tensor, key: Tensor, call: AttentionSpec, last: Tensor | None = None) -> Tensor:
    """Mask of the keys that queries may attend to, by positions [n] and [n, length]: bool [n,
    length]. `last` [n] is the position of the last such key, if not the query's."""
    at = query[:, None]
    mask = key <= (at if last is None else last[:, None])
    if call.window is not None:
        mask = mask & (key > at - call.window)
    if call.chunk is not None:
        mask = mask & (at // call.chunk == key // call.chunk)
    return mask
