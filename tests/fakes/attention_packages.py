"""Packages of attention kernels for GPUs, by their documented Python interfaces, in torch on a CPU.

Each checks the shapes and types that the real one documents, and computes row by row in float32.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

SHORT = (torch.float16, torch.bfloat16)


def install(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> ModuleType:
    """Make a module that can be imported until the test is over."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def hopper(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0)) -> None:
    """A machine whose GPU says so."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)


def attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    *,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    slopes: Tensor | None = None,
) -> Tensor:
    """The last tokens of one text: [n, heads, dim] over [L, kv_heads, any] to [n, heads, any]."""
    group, behind = query.shape[1] // key.shape[1], key.shape[0] - query.shape[0]
    k, v = (x.float().repeat_interleave(group, dim=1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.float(), k) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    ahead = torch.arange(len(key)) - torch.arange(behind, len(key))[:, None]
    if slopes is not None:
        scores = scores - slopes[:, None, None] * ahead.abs()
    hidden = ahead > 0
    if window[0] >= 0:
        hidden |= ahead < -window[0]
    if window[1] >= 0:
        hidden |= ahead > window[1]
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v).to(query.dtype)


def rows_of(starts: Tensor) -> list[slice]:
    """What lies between each two of them, which are int32 [B + 1]."""
    assert starts.dtype is torch.int32 and starts.is_contiguous() and int(starts[0]) == 0
    return [slice(first, end) for first, end in pairwise(starts.tolist())]


def check_heads(query: Tensor, *caches: Tensor) -> None:
    """Three axes, short floats, channels in one piece."""
    assert query.ndim == 3
    for x in (query, *caches):
        assert x.dtype in SHORT and x.dtype is query.dtype and x.stride(-1) == 1


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    """Of `flash_attn` 2: keys [total_k, heads_k, dim], or with a block table [blocks, a multiple of
    256, heads_k, dim]."""
    check_heads(q, k, v)
    assert causal and softmax_scale is not None and not dropout_p and not return_attn_probs
    assert alibi_slopes is None or alibi_slopes.dtype is torch.float32
    queries, keys = rows_of(cu_seqlens_q), rows_of(cu_seqlens_k)
    assert max(s.stop - s.start for s in queries) == max_seqlen_q
    assert max(s.stop - s.start for s in keys) == max_seqlen_k
    if block_table is None:
        assert k.ndim == 3 and len(k) == keys[-1].stop
        texts = [(k[s], v[s]) for s in keys]
    else:
        assert block_table.dtype is torch.int32 and k.ndim == 4 and k.shape[1] % 256 == 0
        counts = [s.stop - s.start for s in keys]
        texts = in_pages(k, v, list(block_table), counts)
    return torch.cat(
        [
            attended(
                *(q[s], *text, softmax_scale),
                window=window_size,
                softcap=softcap,
                slopes=alibi_slopes,
            )
            for s, text in zip(queries, texts, strict=True)
        ]
    )


def in_pages(
    key: Tensor, value: Tensor, tables: Sequence[Tensor], lengths: Sequence[int]
) -> list[tuple[Tensor, Tensor]]:
    """The keys and values of each row, out of [pages, page_size, heads, any]."""
    return [
        (key[t.long()].flatten(0, 1)[:length], value[t.long()].flatten(0, 1)[:length])
        for t, length in zip(tables, lengths, strict=True)
    ]


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor:
    """Of `flash_attn_interface` 3, with pages and rows of any number of queries."""
    check_heads(q, k_cache, v_cache)
    assert causal and k is None and v is None and softmax_scale is not None
    assert cache_seqlens is not None and cache_seqlens.dtype is torch.int32
    assert page_table is not None and page_table.dtype is torch.int32
    assert cu_seqlens_q is not None
    queries = rows_of(cu_seqlens_q)
    assert max(s.stop - s.start for s in queries) == max_seqlen_q
    if qv is not None:
        assert qv.shape == (*q.shape[:2], v_cache.shape[3]) and q.shape[2] <= 64
        q, k_cache = torch.cat((q, qv), -1), torch.cat((k_cache, v_cache), -1)
    texts = in_pages(k_cache, v_cache, list(page_table), cache_seqlens.tolist())
    return torch.cat(
        [
            attended(q[s], *text, softmax_scale, window=window_size, softcap=softcap)
            for s, text in zip(queries, texts, strict=True)
        ]
    )


class _PagedWrapper:
    """What both wrappers of FlashInfer for keys and values have in common."""

    made = 0
    """Since a test began to count."""

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
    ) -> None:
        self._buffers: tuple[Any, Any, Any] | None = None
        if use_cuda_graph:
            buffers = (paged_kv_indptr_buffer, paged_kv_indices_buffer)
            self._buffers = (*buffers, paged_kv_last_page_len_buffer)
            assert all(torch.is_tensor(buffer) for buffer in self._buffers)
            assert len(self._buffers[0]) == len(self._buffers[2]) + 1
        assert float_workspace_buffer.dtype is torch.uint8 and kv_layout in ("NHD", "HND")
        assert float_workspace_buffer.numel() >= 128 << 20
        type(self).made += 1
        self.kv_layout, self.use_tensor_cores, self.planned = kv_layout, use_tensor_cores, 0

    def _plan(
        self,
        queries: list[slice],
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        shape: tuple[int, int, int, int],
        pos_encoding_mode: str,
        window_left: int,
        logits_soft_cap: float | None,
        q_data_type: Any,
        kv_data_type: Any,
        sm_scale: float | None,
    ) -> None:
        assert indices.dtype is last_page_len.dtype is torch.int32 and pos_encoding_mode == "NONE"
        assert q_data_type is kv_data_type and sm_scale is not None
        tables = rows_of(indptr)
        assert len(indices) == tables[-1].stop and len(last_page_len) == len(tables)
        assert int(last_page_len.min()) >= 1 and int(last_page_len.max()) <= shape[3]
        if self._buffers is not None:  # A plan of graphs copies into memory that replays read.
            assert len(last_page_len) == len(self._buffers[2]), "the batch size is fixed"
            assert len(indices) <= len(self._buffers[1])
            given = (indptr, indices, last_page_len)
            for buffer, told in zip(self._buffers, given, strict=True):
                buffer[: len(told)].copy_(told)
            indices = self._buffers[1]
        self._queries, self._tables = queries, [indices[s] for s in tables]
        last = zip(self._tables, last_page_len.tolist(), strict=True)
        self._lengths = [(len(table) - 1) * shape[3] + count for table, count in last]
        self._shape, self._scale, self._dtype = shape, sm_scale, q_data_type
        self._window, self._softcap = window_left, logits_soft_cap or 0.0
        self.planned += 1

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        """q [total_q, heads, dim] and keys and values in the order of the layout."""
        check_heads(q, *paged_kv_cache)
        key, value = paged_kv_cache
        assert key.stride() == value.stride() and q.dtype is self._dtype
        if self.kv_layout == "HND":
            key, value = key.transpose(1, 2), value.transpose(1, 2)
        heads, kv_heads, dim, page_size = self._shape
        assert q.shape == (self._queries[-1].stop, heads, dim)
        assert key.shape[1:] == (page_size, kv_heads, dim)
        texts = in_pages(key, value, self._tables, self._lengths)
        return torch.cat(
            [
                attended(
                    *(q[s], *text, self._scale), window=(self._window, -1), softcap=self._softcap
                )
                for s, text in zip(self._queries, texts, strict=True)
            ]
        )


class BatchDecodeWithPagedKVCacheWrapper(_PagedWrapper):
    """Of `flashinfer`: one query per row."""

    made = 0

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        data_type: Any = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
    ) -> None:
        """Without tensor cores, its kernels are for groups of 1, 2, 3, 4 and 8."""
        assert self.use_tensor_cores or num_qo_heads // num_kv_heads in (1, 2, 3, 4, 8)
        self._plan(
            [slice(row, row + 1) for row in range(len(indptr) - 1)],
            *(indptr, indices, last_page_len, (num_qo_heads, num_kv_heads, head_dim, page_size)),
            *(pos_encoding_mode, window_left, logits_soft_cap, q_data_type, kv_data_type, sm_scale),
        )


class BatchPrefillWithPagedKVCacheWrapper(_PagedWrapper):
    """Of `flashinfer`: any number of queries per row."""

    made = 0

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
    ) -> None:
        """The mask is causal, aligned to the last query."""
        assert causal and custom_mask is None
        shape = (num_qo_heads, num_kv_heads, head_dim_qk, page_size)
        self._plan(
            *(rows_of(qo_indptr), paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, shape),
            *(pos_encoding_mode, window_left, logits_soft_cap, q_data_type, kv_data_type, sm_scale),
        )


class BatchMLAPagedAttentionWrapper:
    """Of `flashinfer.mla`."""

    made = 0

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        use_cuda_graph: bool = False,
        qo_indptr: Tensor | None = None,
        kv_indptr: Tensor | None = None,
        kv_indices: Tensor | None = None,
        kv_len_arr: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        assert float_workspace_buffer.numel() >= 128 << 20
        self._buffers: tuple[Any, ...] | None = None
        if use_cuda_graph:
            self._buffers = (qo_indptr, kv_indptr, kv_indices, kv_len_arr)
            assert all(torch.is_tensor(buffer) for buffer in self._buffers)
        type(self).made += 1

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        kv_indices: Tensor,
        kv_len_arr: Tensor,
        num_heads: int,
        head_dim_ckv: int,
        head_dim_kpe: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        use_profiler: bool = False,
    ) -> None:
        """Rows of any number of queries; `kv_len_arr` are the keys of each."""
        assert causal and kv_indices.dtype is kv_len_arr.dtype is torch.int32
        tables = rows_of(kv_indptr)
        assert len(kv_indices) == tables[-1].stop and q_data_type is kv_data_type
        if self._buffers is not None:  # All but the pages are copied whole: the sizes are fixed.
            given = (qo_indptr, kv_indptr, kv_indices, kv_len_arr)
            for buffer, told in zip(self._buffers, given, strict=True):
                (buffer[: len(told)] if told is kv_indices else buffer).copy_(told)
            kv_indices = self._buffers[2]
        self._queries, self._tables = rows_of(qo_indptr), [kv_indices[s] for s in tables]
        self._lengths, self._scale = kv_len_arr.tolist(), sm_scale
        self._shape = (num_heads, head_dim_ckv, head_dim_kpe, page_size)

    def run(self, q_nope: Tensor, q_pe: Tensor, ckv_cache: Tensor, kpe_cache: Tensor) -> Tensor:
        """[total_q, heads, ckv] and [.., kpe] over [pages, page_size, ckv] and [.., kpe]."""
        heads, ckv, kpe, page_size = self._shape
        assert q_nope.shape[1:] == (heads, ckv) and q_pe.shape[1:] == (heads, kpe)
        assert ckv_cache.shape[1:] == (page_size, ckv) and kpe_cache.shape[1:] == (page_size, kpe)
        check_heads(q_nope, q_pe, ckv_cache, kpe_cache)
        query, key = torch.cat((q_nope, q_pe), -1), torch.cat((ckv_cache, kpe_cache), -1)
        texts = in_pages(key[:, :, None], ckv_cache[:, :, None], self._tables, self._lengths)
        return torch.cat(
            [
                attended(query[s], *text, self._scale)
                for s, text in zip(self._queries, texts, strict=True)
            ]
        )
