"""Fast paged attention in plain torch: rows that can share a matrix product form a group.

Eager torch pays per operation, not per row, so rows with the same few new tokens (decode, or a
speculative draft) and a similar length are gathered and attended together. A prefill chunk is a
group of its own, cut into blocks of queries so that no score above the diagonal is computed.

    decode group    query [R, kv_heads, group * n, dim] x key [R, kv_heads, L, dim] + mask [R, L]
    prefill row     query [kv_heads, group * n, dim]    x key [kv_heads, :end, dim] per block

The query heads that share a key head are folded into the query axis: no key is ever repeated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.attention.base import AttentionBatch, AttentionCall

_MOST_SHARED_TOKENS = 8
"""Rows with more new tokens than this are worth a matrix product of their own."""
_FEWEST_PAGES = 8
"""Rows up to this many pages are not sorted by length: one more group costs more than padding."""
_BLOCK = 128
"""Queries per block of a prefill row."""


class _Group(Protocol):
    def attend(self, query: Tensor, pages: Tensor, out: Tensor, sinks: Tensor | None) -> None:
        """Write this group's rows of `out` [T, num_heads, head_dim]."""


class GroupedBackend:
    """Groups of rows, batched matrix products, additive masks made once per step."""

    def refuses(self, call: AttentionCall) -> str | None:
        """Only what its tensors cannot hold."""
        if not call.dtype.is_floating_point or call.dtype.itemsize < 2:
            return f"pages of {call.dtype} need a kernel that widens them"
        if call.latent and call.codes:
            return f"it reads no {call.codes} latents"
        return None

    def plan(self, batch: AttentionBatch, call: AttentionCall) -> list[_Group]:
        """Sort the rows into groups and make their masks."""
        shared, groups, first = defaultdict(list), list[_Group](), 0
        for row, (count, start) in enumerate(zip(batch.counts, batch.starts, strict=True)):
            if count > _MOST_SHARED_TOKENS:
                groups.append(_prefill_row(batch, call, row, first))
            else:
                num_pages = -(-(start + count) // batch.page_size)
                shared[count, max(num_pages, _FEWEST_PAGES).bit_length()].append(row)
            first += count
        groups += [_shared_rows(batch, call, rows) for rows in shared.values()]
        return groups

    def forward(
        self, plan: list[_Group], query: Tensor, pages: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """See `Backend.forward`."""
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        sinks = None if sinks is None else sinks.expand(query.shape[:2])
        for group in plan:
            group.attend(query, pages, out, sinks)
        return out.flatten(1)


@dataclass(frozen=True, slots=True)
class _SharedRows:
    """R rows of n new tokens each, padded to one length L."""

    call: AttentionCall
    tokens: Tensor | None  # int64 [R * n], None when the group is the whole batch
    pages: Tensor  # int64 [R * L / page_size]
    mask: Tensor  # [R, 1 or kv_heads, group * n, L], additive
    num_rows: int

    def attend(self, query: Tensor, pages: Tensor, out: Tensor, sinks: Tensor | None) -> None:
        call = self.call
        new = query if self.tokens is None else query.index_select(0, self.tokens)
        heads = (call.num_kv_heads, call.num_heads // call.num_kv_heads, call.head_dim)
        folded = new.view(self.num_rows, -1, *heads).permute(0, 2, 3, 1, 4).flatten(2, 3)
        history = torch.unflatten(_gather(pages, self.pages, call), 0, (self.num_rows, -1))
        key, value = history[:, :, 0], history[:, :, -1]
        if sinks is not None:
            sinks = sinks if self.tokens is None else sinks.index_select(0, self.tokens)
            sinks = sinks.reshape(self.num_rows, -1, *heads[:2]).permute(0, 2, 3, 1)
            sinks = sinks.flatten(2, 3)[..., None]
        key, value = key.transpose(1, 2), value.transpose(1, 2)
        result = _attend(folded, key, value, self.mask, call, sinks)
        result = torch.unflatten(result, 2, (heads[1], -1)).permute(0, 3, 1, 2, 4)
        if self.tokens is None:
            out.view(self.num_rows, -1, *heads).copy_(result)
        else:
            out.index_copy_(0, self.tokens, result.reshape(-1, call.num_heads, call.head_dim))


@dataclass(frozen=True, slots=True)
class _PrefillRow:
    """One row with many new tokens: blocks of queries, each against the keys up to its end."""

    call: AttentionCall
    first: int  # of the flat token axis
    pages: Tensor  # int64 [pages of this row]
    blocks: tuple[tuple[int, int, int, int, Tensor], ...]
    """Per block: its queries [from, to), its keys [from, to), mask [(heads,) to - from, keys]."""

    def attend(self, query: Tensor, pages: Tensor, out: Tensor, sinks: Tensor | None) -> None:
        call, group = self.call, self.call.num_heads // self.call.num_kv_heads
        history = _gather(pages, self.pages, call)
        key, value = history[:, 0], history[:, -1]
        key, value = key.permute(1, 2, 0).contiguous(), value.transpose(0, 1).contiguous()
        for begin, end, oldest, newest, mask in self.blocks:
            here = slice(self.first + begin, self.first + end)
            new = torch.unflatten(query[here] * call.scale, 1, (call.num_kv_heads, group))
            folded = new.permute(1, 2, 0, 3).flatten(1, 2)
            scores = _capped(torch.bmm(folded, key[:, :, oldest:newest]), call.softcap)
            column = None if sinks is None else sinks[here].T[..., None]
            weights = _weights(scores.view(call.num_heads, end - begin, -1).add_(mask), column)
            result = torch.bmm(weights.reshape(scores.shape), value[:, oldest:newest])
            result = torch.unflatten(result, 1, (group, -1)).permute(2, 0, 1, 3)
            out[here].view_as(result).copy_(result)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    call: AttentionCall,
    sinks: Tensor | None,
) -> Tensor:
    """[R, kv_heads, group * n, dim] queries over [R, kv_heads, L, dim]."""
    if call.softcap is None and sinks is None:
        return F.scaled_dot_product_attention(query, key, value, mask, scale=call.scale)
    scores = _capped((query * call.scale) @ key.transpose(2, 3), call.softcap)
    return _weights(scores + mask, sinks) @ value


def _weights(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over keys [..., keys]; sinks [..., 1] take part and are then dropped."""
    if sinks is None:
        return scores.softmax(-1)
    return torch.cat((scores, sinks.to(scores.dtype)), dim=-1).softmax(-1)[..., :-1]


def _capped(scores: Tensor, softcap: float | None) -> Tensor:
    """Scores bent into (-softcap, softcap), in place."""
    return scores if softcap is None else scores.div_(softcap).tanh_().mul_(softcap)


def _gather(pages: Tensor, numbers: Tensor, call: AttentionCall) -> Tensor:
    """[num_pages, page_size, ...] and int64 [P] to [P * page_size, ...] of `call.dtype`."""
    rows = pages.flatten(1).index_select(0, numbers).view(-1, *pages.shape[2:])
    return rows if call.codes is None else call.codes.decode(rows, call.dtype)


def _shared_rows(batch: AttentionBatch, call: AttentionCall, rows: list[int]) -> _SharedRows:
    count, device = batch.counts[rows[0]], batch.slots.device
    num_pages = max(-(-(batch.starts[row] + count) // batch.page_size) for row in rows)
    whole = len(rows) == len(batch.counts)
    chosen = torch.tensor(rows, device=device)
    table = batch.page_table if whole else batch.page_table.index_select(0, chosen)
    lengths = batch.lengths if whole else batch.lengths.index_select(0, chosen)
    tokens = batch.query_starts.index_select(0, chosen)[:, None] + torch.arange(
        count, device=device
    )
    query = lengths[:, None] - count + torch.arange(count, device=device)
    return _SharedRows(
        call=call,
        tokens=None if whole else tokens.flatten(),
        pages=table[:, :num_pages].flatten().long(),
        mask=_folded_mask(query, num_pages * batch.page_size, call),
        num_rows=len(rows),
    )


def _additive(query: Tensor, length: int, call: AttentionCall, first: int = 0) -> Tensor:
    """0 where the token at position query[r, i] sees position first + j, j < length, else -inf."""
    key = torch.arange(first, first + length, device=query.device)
    hidden = key > query[..., None]
    if call.window is not None:
        hidden |= key <= query[..., None] - call.window
    if call.chunk is not None:
        hidden |= key < (query // call.chunk * call.chunk)[..., None]
    mask = torch.zeros(hidden.shape, dtype=call.dtype, device=query.device)
    return mask.masked_fill_(hidden, float("-inf"))


def _folded_mask(query: Tensor, length: int, call: AttentionCall) -> Tensor:
    """Positions int64 [R, n] to [R, 1 or kv_heads, group * n, length], as `_attend` wants it."""
    group, mask = call.num_heads // call.num_kv_heads, _additive(query, length, call)
    if call.slopes is None:
        return mask.repeat(1, group, 1)[:, None]
    mask = mask[:, None] + _alibi(query, length, call).transpose(0, 1)
    return torch.unflatten(mask, 1, (-1, group)).flatten(2, 3)


def _alibi(query: Tensor, length: int, call: AttentionCall) -> Tensor:
    """Slope times how far each of `length` keys is behind: [heads, *query.shape, length]."""
    behind = torch.arange(length, device=query.device) - query[..., None]
    slopes = torch.tensor(call.slopes, device=query.device).view(-1, *[1] * behind.ndim)
    # In float32 until here: bfloat16 holds no distance beyond 256.
    return (slopes * behind).to(call.dtype)


def _prefill_row(batch: AttentionBatch, call: AttentionCall, row: int, first: int) -> _PrefillRow:
    num_pages = -(-(batch.starts[row] + batch.counts[row]) // batch.page_size)
    return _PrefillRow(
        call=call,
        first=first,
        pages=batch.page_table[row, :num_pages].long(),
        blocks=tuple(_blocks(batch.starts[row], batch.counts[row], call)),
    )


def _blocks(
    start: int, count: int, call: AttentionCall
) -> Iterator[tuple[int, int, int, int, Tensor]]:
    for begin in range(0, count, _BLOCK):
        end = min(begin + _BLOCK, count)
        oldest = 0 if call.window is None else max(0, start + begin - call.window + 1)
        if call.chunk is not None:
            oldest = max(oldest, (start + begin) // call.chunk * call.chunk)
        positions = torch.arange(start + begin, start + end, device=call.device)
        mask = _additive(positions, start + end - oldest, call, oldest)
        if call.slopes is not None:
            mask = mask + _alibi(positions - oldest, start + end - oldest, call)
        yield begin, end, oldest, start + end, mask
