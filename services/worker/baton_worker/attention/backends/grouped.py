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

from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.attention_spec import AttentionSpec
from baton_worker.attention.backend import fits
from baton_worker.attention.tree_mask import AHEAD
from baton_worker.kernels.kv_pages import gather, parts
from baton_worker.kernels.page_layout import EVERY

_MOST_SHARED_TOKENS = 8
"""Rows with more new tokens than this have a matrix product of their own."""
_FEWEST_PAGES = 8
"""Rows up to this many pages are not sorted by length: one more group costs more than padding."""
_BLOCK = 128
"""Queries per block of a prefill row."""


class _Group(Protocol):
    @property
    def call(self) -> AttentionSpec:
        """Parameters of the attention."""
        ...

    def attend(
        self, query: Tensor, pages: Tensor, out: Tensor, sinks: Tensor | None, lse: Tensor | None
    ) -> None:
        """Write this group's rows of `out` [T, num_heads, width] and of `lse` [T, num_heads]."""


class GroupedBackend:
    """Groups of rows, batched matrix products, additive masks made once per step."""

    layouts = EVERY
    capture_blocker = "grouped attention sorts the rows of each step by their lengths, on the host"
    launch_blocker = None

    def refuses(self, call: AttentionSpec) -> str | None:
        """Refuses only what its tensors cannot represent."""
        if not call.dtype.is_floating_point or call.dtype.itemsize < 2:
            return f"pages of {call.dtype} need a kernel that widens them"
        if call.latent and call.codes:
            return f"it reads no {call.codes} latents"
        return None

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> list[_Group]:
        """Sort the rows into groups and make their masks."""
        assert fits(batch, call)
        shared, groups, first = defaultdict(list), list[_Group](), 0
        for row, (count, start) in enumerate(
            zip(batch.query_lens, batch.num_computed, strict=True)
        ):
            if count > _MOST_SHARED_TOKENS:
                groups.append(_prefill_row(batch, call, row, first))
            else:
                num_pages = -(-(start + count) // batch.page_size)
                shared[count, max(num_pages, _FEWEST_PAGES).bit_length()].append(row)
            first += count
        groups += [_shared_rows(batch, call, rows) for rows in shared.values()]
        return groups

    def forward(
        self,
        plan: list[_Group],
        query: Tensor,
        pages: Tensor,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> Tensor:
        """See `Backend.forward`."""
        width = plan[0].call.width
        out = torch.empty((*query.shape[:2], width), dtype=query.dtype, device=query.device)
        sinks = None if sinks is None else sinks.expand(query.shape[:2])
        for group in plan:
            group.attend(query, pages, out, sinks, lse)
        return out.flatten(1)


@dataclass(frozen=True, slots=True)
class _SharedRows:
    """R rows of n new tokens each, padded to one length L."""

    call: AttentionSpec
    tokens: Tensor | None  # int64 [R * n], None if the group is the whole batch
    pages: Tensor  # int64 [R * L / page_size]
    mask: Tensor  # [R, 1 or kv_heads, group * n, L], additive
    num_rows: int

    def attend(
        self, query: Tensor, pages: Tensor, out: Tensor, sinks: Tensor | None, lse: Tensor | None
    ) -> None:
        call = self.call
        new = query if self.tokens is None else query.index_select(0, self.tokens)
        heads = (call.num_kv_heads, call.group)
        folded = new.view(self.num_rows, -1, *heads, call.head_dim)
        folded = folded.permute(0, 2, 3, 1, 4).flatten(2, 3)
        history = _gather(pages, self.pages, call)
        key, value = (
            torch.unflatten(part, 0, (self.num_rows, -1)).transpose(1, 2) for part in history
        )
        if sinks is not None:
            sinks = sinks if self.tokens is None else sinks.index_select(0, self.tokens)
            sinks = sinks.reshape(self.num_rows, -1, *heads).permute(0, 2, 3, 1)
            sinks = sinks.flatten(2, 3)[..., None]
        result, sums = _attend(folded, key, value, self.mask, call, sinks)
        # For latents, torch is faster with values as wide as keys; the surplus is cut off here.
        self._write(result[..., : call.width], out)
        if lse is not None and sums is not None:
            self._write(sums, lse[..., None])

    def _write(self, result: Tensor, out: Tensor) -> None:
        """Write [R, kv_heads, group * n, any] to this group's rows of [T, num_heads, any]."""
        result = torch.unflatten(result, 2, (self.call.group, -1)).permute(0, 3, 1, 2, 4)
        if self.tokens is None:
            out.view(result.shape).copy_(result)
        else:
            rows = result.reshape(-1, *out.shape[1:]).to(out.dtype)
            out.index_copy_(0, self.tokens, rows)


@dataclass(frozen=True, slots=True)
class _PrefillRow:
    """One row with many new tokens, in blocks of queries; each attends to the keys up to its
    end."""

    call: AttentionSpec
    first: int  # slice of the flat token axis
    pages: Tensor  # int64 [pages of this row]
    blocks: tuple[tuple[int, int, int, int, Tensor], ...]
    """Per block: its queries [from, to), its keys [from, to), mask [(heads,) to - from, keys]."""

    def attend(
        self, query: Tensor, pages: Tensor, out: Tensor, sinks: Tensor | None, lse: Tensor | None
    ) -> None:
        call, group = self.call, self.call.group
        key, value = _gather(pages, self.pages, call)
        value = value[..., : call.width].transpose(0, 1).contiguous()
        key = key.permute(1, 2, 0).contiguous()
        for begin, end, oldest, newest, mask in self.blocks:
            here = slice(self.first + begin, self.first + end)
            new = torch.unflatten(query[here] * call.scale, 1, (call.num_kv_heads, group))
            folded = new.permute(1, 2, 0, 3).flatten(1, 2)
            scores = torch.bmm(folded.to(key.dtype), key[:, :, oldest:newest])
            scores = _capped(scores, call.softcap).view(call.num_heads, end - begin, -1)
            column = None if sinks is None else sinks[here].T[..., None]
            weights, sums = _weights(scores.add_(mask), column, call)
            weights = weights.view(call.num_kv_heads, -1, newest - oldest)
            result = torch.bmm(weights, value[:, oldest:newest])
            result = torch.unflatten(result, 1, (group, -1)).permute(2, 0, 1, 3)
            out[here].view_as(result).copy_(result)
            if lse is not None and sums is not None:
                lse[here] = sums[..., 0].T


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    call: AttentionSpec,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Attend queries [R, kv_heads, group * n, dim] to keys [R, kv_heads, L, dim]. A partial call
    also returns the log-sum-exp of the scores, [R, kv_heads, group * n, 1]."""
    if call.softcap is None and sinks is None and not call.partial:
        scale = call.scale
        return F.scaled_dot_product_attention(query, key, value, mask, scale=scale), None
    scores = (query * call.scale).to(key.dtype) @ key.transpose(2, 3)
    weights, sums = _weights(_capped(scores, call.softcap) + mask, sinks, call)
    return weights @ value, sums


def _weights(
    scores: Tensor, sinks: Tensor | None, call: AttentionSpec
) -> tuple[Tensor, Tensor | None]:
    """Softmax over keys [..., keys] and sinks [..., 1], whose weights are then dropped; for a
    partial call also the log-sum-exp [..., 1]."""
    if call.partial:
        sums = scores.logsumexp(-1, keepdim=True)
        sums = sums if sinks is None else sums.logaddexp(sinks.to(sums.dtype))
        # A row without visible keys has -inf here, and -inf - -inf is NaN.
        return (scores - sums.masked_fill(sums.isneginf(), 0.0)).exp(), sums
    if sinks is None:
        return scores.softmax(-1), None
    return torch.cat((scores, sinks.to(scores.dtype)), dim=-1).softmax(-1)[..., :-1], None


def _capped(scores: Tensor, softcap: float | None) -> Tensor:
    """Soft-cap scores to (-softcap, softcap), in place."""
    return scores if softcap is None else scores.div_(softcap).tanh_().mul_(softcap)


def _gather(pages: Tensor, numbers: Tensor, call: AttentionSpec) -> tuple[Tensor, Tensor]:
    """Gather pages int64 [P] of [num_pages, page_size, ...] to keys and values [P * page_size,
    kv_heads, dim]; for latents the value is the whole key. Partial calls compute in float32, since
    their rounding errors would add up."""
    dtype = torch.float32 if call.partial else call.dtype
    rows = gather(pages, numbers)
    return parts(rows, call.head_dim, call.codes, dtype, latent=call.latent)


def _shared_rows(batch: AttentionBatch, call: AttentionSpec, rows: list[int]) -> _SharedRows:
    count, device = batch.query_lens[rows[0]], batch.slot_mapping.device
    num_pages = max(-(-(batch.num_computed[row] + count) // batch.page_size) for row in rows)
    whole = len(rows) == len(batch.query_lens)
    chosen = torch.tensor(rows, device=device)
    table = batch.block_table if whole else batch.block_table.index_select(0, chosen)
    tokens = batch.query_start_loc.index_select(0, chosen)[:, None] + torch.arange(
        count, device=device
    )
    return _SharedRows(
        call=call,
        tokens=None if whole else tokens.flatten(),
        pages=table[:, :num_pages].flatten().long(),
        mask=_folded_mask(
            *_positions(batch, rows, tokens, num_pages * batch.page_size),
            call,
            None if batch.last_keys is None else batch.last_keys[tokens],
        ),
        num_rows=len(rows),
    )


def _positions(
    batch: AttentionBatch, rows: list[int], tokens: Tensor, length: int
) -> tuple[Tensor, Tensor]:
    """(positions of the new tokens `tokens` [R, n] of the flat axis: int64 [R, n]; positions of
    their first `length` keys: int64 [R, n or 1, length])."""
    device = tokens.device
    chosen = torch.tensor(rows, device=device)
    starts = batch.seq_lens.index_select(0, chosen).long()[:, None] - tokens.shape[1]
    at = starts + torch.arange(tokens.shape[1], device=device)
    keys = torch.arange(length, device=device).expand(len(rows), 1, -1)
    if (trees := batch.trees) is not None:
        at = starts + trees.depths[tokens]
        new = zip(tokens, starts.flatten().tolist(), strict=True)
        keys = torch.stack([trees.places(tree, start, length) for tree, start in new])
    if batch.ranges is not None:
        first, end = torch.tensor(batch.ranges, device=device)[chosen, :, None, None].unbind(1)
        index = torch.arange(length, device=device)
        keys = torch.where((index >= first) & (index < end), keys, AHEAD)
    return at, keys


def _mask(query: Tensor, key: Tensor, call: AttentionSpec, last: Tensor | None = None) -> Tensor:
    """Additive mask [..., n, length] for queries at positions [..., n] and keys at [..., n or 1,
    length]: 0 where a key is visible, else -inf. `last` [..., n] is as `AttentionBatch.last_keys`.
    """
    query = query[..., None]
    hidden = key > (query if last is None else last[..., None])
    if call.window is not None:
        hidden |= key <= query - call.window
    if call.chunk is not None:
        hidden |= key < query // call.chunk * call.chunk
    dtype = torch.float32 if call.partial else call.dtype
    mask = torch.zeros(hidden.shape, dtype=dtype, device=query.device)
    return mask.masked_fill_(hidden, float("-inf"))


def _folded_mask(query: Tensor, key: Tensor, call: AttentionSpec, last: Tensor | None) -> Tensor:
    """Additive mask [R, 1 or kv_heads, group * n, length] from positions int64 [R, n] and [R, n or
    1, length], and `last` keys [R, n]."""
    mask = _mask(query, key, call, last)
    if call.slopes is None:
        return mask.repeat(1, call.group, 1)[:, None]
    mask = mask[:, None] + _alibi(query, key, call, mask.dtype).transpose(0, 1)
    return torch.unflatten(mask, 1, (-1, call.group)).flatten(2, 3)


def _alibi(query: Tensor, key: Tensor, call: AttentionSpec, dtype: torch.dtype) -> Tensor:
    """ALiBi bias: slope times distance, [heads, *query.shape, length]."""
    behind = key - query[..., None]
    slopes = torch.tensor(call.slopes, device=query.device).view(-1, *[1] * behind.ndim)
    # In float32 until here: bfloat16 represents distances exactly only up to 256.
    return (slopes * behind).to(dtype)


def _prefill_row(batch: AttentionBatch, call: AttentionSpec, row: int, first: int) -> _PrefillRow:
    num_pages = -(-(batch.num_computed[row] + batch.query_lens[row]) // batch.page_size)
    return _PrefillRow(
        call=call,
        first=first,
        pages=batch.block_table[row, :num_pages].long(),
        blocks=tuple(_blocks(batch, call, row, first)),
    )


def _blocks(
    batch: AttentionBatch, call: AttentionSpec, row: int, first: int
) -> Iterator[tuple[int, int, int, int, Tensor]]:
    start, count = batch.num_computed[row], batch.query_lens[row]
    tokens = torch.arange(first, first + count, device=call.device)
    at, keys = _positions(batch, [row], tokens[None], start + count)
    keys = keys.expand(-1, count, -1)
    for begin in range(0, count, _BLOCK):
        end = min(begin + _BLOCK, count)
        # All tokens of a tree may be equally near to the context.
        earliest = start + (begin if batch.trees is None else 0)
        oldest = 0 if call.window is None else max(0, earliest - call.window + 1)
        if call.chunk is not None:
            oldest = max(oldest, earliest // call.chunk * call.chunk)
        last = None if batch.last_keys is None else batch.last_keys[first + begin : first + end]
        newest = start + end if last is None else int(last.max()) + 1
        query, positions = at[0, begin:end], keys[0, begin:end, oldest:newest]
        mask = _mask(query, positions, call, last)
        if call.slopes is not None:
            mask = mask + _alibi(query, positions, call, mask.dtype)
        yield begin, end, oldest, newest, mask
