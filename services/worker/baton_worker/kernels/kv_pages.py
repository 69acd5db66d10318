"""Keys and values in one byte per channel: how a page holds them, in torch.

    a row of a page     [ codes: head_dim bytes | scale: float32 ]      x = scale * code

Each key or value of each head has its own scale, the least with which no channel is cut off, or
one that the checkpoint gives for the whole layer. Either way, what is stored of a token depends on
nothing but the token. The twins in C++ are in `kernels/cpu/pages.h`; they store the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton_worker.kernels import triton

SCALE_BYTES = 4
_LEAST = 1e-30
"""Stands for what is smaller, so that a scale has an inverse."""


@dataclass(frozen=True, slots=True)
class KVCodes:
    """One kind of code."""

    name: str
    number: int
    """In the structures of the C++ kernels, where 0 is plain numbers."""
    most: float
    """The greatest code."""
    dtype: torch.dtype

    def __str__(self) -> str:
        """Its name."""
        return self.name

    def encode(self, x: Tensor, given: Tensor | None = None) -> Tensor:
        """Floats [..., head_dim] to uint8 [..., head_dim + SCALE_BYTES].

        `given` are scales, float32 and broadcast to [..., 1]; what is too large for them is cut
        off.
        A row in which something is not finite decodes to NaN, so that a broken sequence shows.
        """
        x = x.float()
        most = x.abs().amax(-1, keepdim=True)
        least = most.clamp_min(_LEAST) * (1 / self.most)
        scale = least if given is None else given.expand_as(least)
        scale = torch.where(most.isfinite(), scale, float("nan"))
        codes = (x * scale.reciprocal()).nan_to_num().clamp(-self.most, self.most)
        if not self.dtype.is_floating_point:
            codes = codes.round()
        parts = (codes.to(self.dtype).view(torch.uint8), scale.view(torch.uint8))
        return torch.cat(parts, dim=-1)

    def decode(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """uint8 [..., head_dim + SCALE_BYTES] to floats [..., head_dim]."""
        codes = rows[..., :-SCALE_BYTES].contiguous().view(self.dtype)
        scale = rows[..., -SCALE_BYTES:].contiguous().view(torch.float32)
        return (codes.float() * scale).to(dtype)


CODES = {
    "int8": KVCodes("int8", 1, 127.0, torch.int8),
    "fp8": KVCodes("fp8", 2, 448.0, torch.float8_e4m3fn),
}
"""By the name in the settings; pages of "auto" hold numbers of the model's dtype. FP8 is e4m3
(Micikevicius et al. 2022, arXiv:2209.05433)."""


def row_width(head_dim: int, codes: KVCodes | None) -> int:
    """Elements of a page that a key or value of one head takes."""
    return head_dim if codes is None else head_dim + SCALE_BYTES


def parts(
    rows: Tensor, head_dim: int, codes: KVCodes | None, dtype: torch.dtype, *, latent: bool
) -> tuple[Tensor, Tensor]:
    """What pages hold of some tokens, [..., 1 or 2, num_kv_heads, width], to keys [...,
    num_kv_heads, head_dim] and values of `dtype`. Of `latent` rows both are the same."""
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
            `value_dim` [num_pages, page_size, 1, num_kv_heads, that of a key and of a value].
        codes: of the pages; None where they hold plain numbers.
        scales: float32 [2 * num_kv_heads, 1], see `Codes.encode`.
        value_dim: how many channels of a value are kept, where not all.
    """
    if value_dim is not None:
        scatter(_side_by_side(rows, codes, scales, value_dim), slots, pages)
        return
    if triton.runs(pages.device):
        from baton_worker.kernels.triton import kv_write as fused

        fused.put(rows, slots, pages, codes, scales)
        return
    kept = rows if codes is None else codes.encode(rows, scales)
    scatter(kept.view(len(kept), *pages.shape[2:]), slots, pages)


def _side_by_side(
    rows: Tensor, codes: KVCodes | None, scales: Tensor | None, value_dim: int
) -> Tensor:
    """[T, 2 * num_kv_heads, head_dim] as pages hold them that keep less of a value than of a key:
    [T, 1, num_kv_heads, width]."""
    key, value = rows.chunk(2, dim=1)
    value = value[..., :value_dim]
    if codes is not None:
        of_key, of_value = (None, None) if scales is None else scales.chunk(2)
        key, value = codes.encode(key, of_key), codes.encode(value, of_value)
    return torch.cat((key, value), dim=-1)[:, None]


def scatter(kept: Tensor, slots: Tensor, pages: Tensor) -> None:
    """Write tokens as pages hold them to their slots.

    Args:
        kept: [T, 1 or 2, num_kv_heads, width], of the dtype of the pages.
        slots: int64 [T].
        pages: [num_pages, page_size, *kept.shape[1:]], in either layout.
    """
    if pages.is_contiguous():
        pages.view(-1, *kept.shape[1:]).index_copy_(0, slots, kept)
    else:
        pages[slots // pages.shape[1], slots % pages.shape[1]] = kept


def gather(pages: Tensor, numbers: Tensor) -> Tensor:
    """Whole pages int64 [P], token after token: [P * page_size, 1 or 2, num_kv_heads, width]."""
    if pages.is_contiguous():  # As rows of one axis they are copied several times as fast.
        return pages.flatten(1).index_select(0, numbers).view(-1, *pages.shape[2:])
    return pages.index_select(0, numbers).flatten(0, 1)
