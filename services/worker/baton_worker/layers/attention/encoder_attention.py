"""Attention within whole texts by the backend of pages, which reads keys and values in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker import spec
from baton_worker.attention import AttentionBatch, AttentionSpec
from baton_worker.layers.attention.whole_texts import Texts, lengths_of
from baton_worker.layers.build_context import BuildContext


class _Kind(NamedTuple):
    """Layers that share the plan of a step."""

    settings: type[spec.Attention]
    call: AttentionSpec


class EncoderAttention:
    """softmax(scale * Q K^T) V of packed heads. On a CPU the projected keys and values serve as
    pages, one per text, so texts of any lengths are one call; elsewhere, and where only some
    tokens are keys, it is `attend`, the twin in torch."""

    def __init__(self, settings: spec.Attention, context: BuildContext) -> None:
        self._settings = settings
        self._kind = _Kind(type(settings), _call(settings, context))
        self._backend = context.attention.named("cpu", self._kind.call)

    def __call__(self, heads: Tensor, texts: Sequence[Texts], plans: dict[Any, Any]) -> Tensor:
        """Heads [T, q + k + v, dim] to [T, q * dim].

        Args:
            plans: of the step; layers of one kind share theirs.
        """
        if self._backend is None or any(same.is_key is not None for same in texts):
            return attend(heads, texts, self._settings)
        if self._kind not in plans:
            batch = _batch(lengths_of(texts, len(heads)), self._settings)
            plans[self._kind] = self._backend.plan(batch, self._kind.call)
        query, pages = heads[:, : self._settings.num_heads], _pages(heads, self._settings)
        return self._backend.forward(plans[self._kind], query, pages)


def _call(settings: spec.Attention, context: BuildContext) -> AttentionSpec:
    window = settings.mask.window
    return AttentionSpec(
        num_heads=settings.num_heads,
        num_kv_heads=settings.num_kv_heads,
        head_dim=settings.head_dim,
        scale=settings.scale,
        window=None if window is None else window + 1,
        dtype=context.dtype,
        device=context.device,
        spans=True,
    )


def _batch(lengths: Sequence[int], settings: spec.Attention) -> AttentionBatch:
    """One row per text. Its page has the number of its first token, see `_pages`."""
    counts = torch.tensor(lengths, dtype=torch.int32)
    ends = torch.cumsum(counts, 0, dtype=torch.int32)
    starts = ends - counts
    return AttentionBatch(
        query_start_loc=torch.cat((starts, ends[-1:])),
        seq_lens=counts,
        block_table=starts[:, None],
        slot_mapping=torch.empty(0, dtype=torch.int64),
        query_lens=tuple(lengths),
        num_computed=(0,) * len(lengths),
        page_size=max(lengths),
        last_keys=_last_keys(lengths, settings),
    )


def _last_keys(lengths: Sequence[int], settings: spec.Attention) -> Tensor | None:
    """See `AttentionBatch.last_keys`."""
    if isinstance(settings, spec.CausalAttention):
        return None
    counts = torch.tensor(lengths)
    last = (counts - 1).repeat_interleave(counts)
    own = torch.cat([torch.arange(count) for count in lengths])
    if isinstance(settings, spec.HalfCausalAttention):
        last = torch.maximum(own, (counts // 2 - 1).repeat_interleave(counts))
    elif settings.mask.window is not None:
        last = torch.minimum(own + settings.mask.window, last)
    return last.to(torch.int32)


def _pages(heads: Tensor, settings: spec.Attention) -> Tensor:
    """Keys and values in place as pages that begin at every token: page n holds the tokens from n
    on. Of the first axis, only the stride counts."""
    shape = (1, len(heads), 2, settings.num_kv_heads, settings.head_dim)
    row, head, channel = heads.stride()
    stride = (row, row, head * settings.num_kv_heads, head, channel)
    return heads[:, settings.num_heads :].as_strided(shape, stride)


def attend(heads: Tensor, texts: Sequence[Texts], settings: spec.Attention) -> Tensor:
    """Heads [T, q + k + v, dim] of packed texts to [T, q * dim]."""
    if len(texts) == 1:
        return _attend(heads, texts[0], settings)
    out = heads.new_empty(heads.shape[0], settings.num_heads * settings.head_dim)
    for same in texts:
        assert same.tokens is not None
        some = heads.index_select(0, same.tokens)
        out.index_copy_(0, same.tokens, _attend(some, same, settings))
    return out


def _attend(heads: Tensor, texts: Texts, settings: spec.Attention) -> Tensor:
    length = texts.length
    num_heads, num_kv_heads = settings.num_heads, settings.num_kv_heads
    rows = heads.view(-1, length, *heads.shape[1:]).transpose(1, 2)
    query, key, value = torch.split(rows, [num_heads, num_kv_heads, num_kv_heads], dim=1)
    mask, window = None, settings.mask.window
    is_causal = isinstance(settings, spec.CausalAttention)
    if window is not None and length > window + 1:
        mask = _near(length, window, heads.device)
        mask, is_causal = (mask.tril() if is_causal else mask), False
    if isinstance(settings, spec.HalfCausalAttention):
        mask = _half_causal(length, heads.device)
    if texts.is_key is not None:
        keys = texts.is_key[:, None, None]
        mask = keys if mask is None else keys & mask
    result = F.scaled_dot_product_attention(
        query,
        key,
        value,
        mask,
        is_causal=is_causal,
        scale=settings.scale,
        enable_gqa=num_heads != num_kv_heads,
    )
    return result.transpose(1, 2).flatten(2).flatten(0, 1)


def _near(length: int, window: int, device: torch.device) -> Tensor:
    """bool [length, length]: positions that are at most `window` apart."""
    position = torch.arange(length, device=device)
    return (position[:, None] - position).abs() <= window


def _half_causal(length: int, device: torch.device) -> Tensor:
    """bool [length, length]: positions in the first half, and those up to each."""
    position = torch.arange(length, device=device)
    return torch.logical_or(position < length // 2, position <= position[:, None])
