"""Writes keys and values of tokens to pages, and reads them back."""

from __future__ import annotations

import ctypes
from functools import cache

import torch
from torch import Tensor

from baton_worker.kernels import triton
from baton_worker.kernels.cpu import library
from baton_worker.kernels.cpu.call_recorder import Kernel, structure
from baton_worker.kernels.kv_codes import KVCodes, row_width


def parts(
    rows: Tensor, head_dim: int, codes: KVCodes | None, dtype: torch.dtype, *, latent: bool
) -> tuple[Tensor, Tensor]:
    """Decode page rows [..., 1 or 2, num_kv_heads, width] to keys [..., num_kv_heads, head_dim] and
    values of `dtype`. For `latent` rows both are the same tensor."""
    if latent or rows.shape[-3] == 2:
        numbers = rows.to(dtype) if codes is None else codes.decode(rows, dtype)
        return numbers[..., 0, :, :], numbers[..., -1, :, :]
    width = row_width(head_dim, codes)
    key, value = rows[..., 0, :, :width], rows[..., 0, :, width:]
    if codes is None:
        return key.to(dtype), value.to(dtype)
    return codes.decode(key, dtype), codes.decode(value, dtype)


def put(
    rows: Tensor,
    slots: Tensor,
    pages: Tensor,
    codes: KVCodes | None,
    scales: Tensor | None = None,
    value_dim: int | None = None,
) -> None:
    """Write keys and values to their pages.

    Args:
        rows: [T, 2 * num_kv_heads, head_dim].
        slots: int64 [T], see `AttentionBatch.slot_mapping`.
        pages: [num_pages, page_size, 2, num_kv_heads, `row_width`], in either layout; with a
            `value_dim` [num_pages, page_size, 1, num_kv_heads, key width + value width].
        codes: of the pages; None if they hold floats.
        scales: float32 [2 * num_kv_heads, 1], see `Codes.encode`.
        value_dim: channels of a value to keep, if not all.
    """
    if value_dim is not None:
        scatter(_side_by_side(rows, codes, scales, value_dim), slots, pages)
        return
    if triton.runs(pages.device):
        from baton_worker.kernels.triton import kv_write as fused

        fused.put(rows, slots, pages, codes, scales)
        return
    stored = rows if codes is None else codes.encode(rows, scales)
    scatter(stored.view(len(stored), *pages.shape[2:]), slots, pages)


def _side_by_side(
    rows: Tensor, codes: KVCodes | None, scales: Tensor | None, value_dim: int
) -> Tensor:
    """Key and truncated value of each head side by side: [T, 2 * num_kv_heads, head_dim] to [T, 1,
    num_kv_heads, width]."""
    key, value = rows.chunk(2, dim=1)
    value = value[..., :value_dim]
    if codes is not None:
        of_key, of_value = (None, None) if scales is None else scales.chunk(2)
        key, value = codes.encode(key, of_key), codes.encode(value, of_value)
    return torch.cat((key, value), dim=-1)[:, None]


def scatter(rows: Tensor, slots: Tensor, pages: Tensor) -> None:
    """Write page rows to their slots.

    Args:
        rows: [T, 1 or 2, num_kv_heads, width], of the dtype of the pages.
        slots: int64 [T].
        pages: [num_pages, page_size, *kept.shape[1:]], in either layout.
    """
    if pages.device.type == "cpu" and (run := _kernel()) is not None:
        _scatter(run, rows, slots, pages)
    elif pages.is_contiguous():
        pages.view(-1, *rows.shape[1:]).index_copy_(0, slots, rows)
    else:
        pages[slots // pages.shape[1], slots % pages.shape[1]] = rows


class _Pages(ctypes.Structure):
    """`baton::Pages` of kv_write.cpp; strides in bytes."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            *("page_size", "planes", "heads", "width"),
            *("row", "row_plane", "row_head", "page", "token", "plane", "head"),
        )
    )


def _scatter(run: Kernel, rows: Tensor, slots: Tensor, pages: Tensor) -> None:
    assert rows.dtype is pages.dtype and rows.shape[1:] == pages.shape[2:]
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    assert pages.stride(-1) == 1
    size, (planes, heads, width) = rows.itemsize, rows.shape[1:]
    bytes_of = (size * stride for stride in (*rows.stride()[:-1], *pages.stride()[:-1]))
    how = structure(_Pages, pages.shape[1], planes, heads, width * size, *bytes_of)
    run(how, rows, len(rows), slots.contiguous(), pages)


@cache
def _kernel() -> Kernel | None:
    kernels = library("kv_write")
    return None if kernels is None else Kernel(kernels.baton_scatter, 5, tokens=2)


def gather(pages: Tensor, numbers: Tensor) -> Tensor:
    """Whole pages int64 [P], token after token: [P * page_size, 1 or 2, num_kv_heads, width]."""
    if pages.is_contiguous():  # Copying rows of a single axis is several times as fast.
        return pages.flatten(1).index_select(0, numbers).view(-1, *pages.shape[2:])
    return pages.index_select(0, numbers).flatten(0, 1)
