"""The contract of an attention backend, and the ragged batch that it works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.kernels.pages import Codes


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """One ragged step: B rows of new tokens, T tokens in all, each row with its own block table.

        row 0 (decode)   row 1 (prefill chunk)     row 2 (decode)
        [t]              [t  t  t  t  t]           [t]              T = 7, query_starts 0 1 6 7
         start 40         start 16                  start 7          lengths 41 21 8

    `counts` and `starts` are on the host, so that a backend can plan without waiting for a device.
    """

    query_starts: Tensor
    """int32 [B + 1]: offset of each row on the flat token axis."""
    lengths: Tensor
    """int32 [B]: keys visible to the last new token of each row."""
    page_table: Tensor
    """int32 [B, pages of the longest row], padded with 0."""
    slots: Tensor
    """int64 [T]: page * page_size + offset, where the key and value of each new token go."""
    counts: tuple[int, ...]
    """New tokens per row."""
    starts: tuple[int, ...]
    """Tokens of each row that are in the cache already."""
    page_size: int

    @classmethod
    def build(
        cls,
        counts: Sequence[int],
        starts: Sequence[int],
        pages: Sequence[Sequence[int]] | npt.NDArray[np.int32],
        page_size: int,
        device: torch.device,
    ) -> AttentionBatch:
        """Compute the step's indices once, on the host.

        Args:
            counts: new tokens per row, each at least 1.
            starts: tokens of each row whose keys and values are in the cache already.
            pages: page numbers per row, ragged or padded to int32 [B, any]; entries beyond
                ceil((start + count) / page_size) are ignored.
            page_size: tokens per page.
            device: where the tensors go.
        """
        count, start = np.asarray(counts, np.int64), np.asarray(starts, np.int64)
        assert len(count) == len(start) == len(pages) and (count > 0).all()
        lengths = start + count
        table = _padded(pages, -(-lengths // page_size))
        offsets = np.concatenate(([0], np.cumsum(count)))
        rows = np.repeat(np.arange(len(count)), count)
        positions = np.arange(offsets[-1]) - (offsets[:-1] - start)[rows]
        slots = table[rows, positions // page_size] * np.int64(page_size) + positions % page_size
        return cls(
            query_starts=torch.from_numpy(offsets.astype(np.int32)).to(device),
            lengths=torch.from_numpy(lengths.astype(np.int32)).to(device),
            page_table=torch.from_numpy(table).to(device),
            slots=torch.from_numpy(slots).to(device),
            counts=tuple(count.tolist()),
            starts=tuple(start.tolist()),
            page_size=page_size,
        )


def _padded(
    pages: Sequence[Sequence[int]] | npt.NDArray[np.int32], used: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32]:
    """The block tables as one array, cut to the longest row, zero where a row has no page."""
    width = int(used.max(initial=0))
    if isinstance(pages, np.ndarray):
        return np.where(np.arange(width) < used[:, None], pages[:, :width], 0).astype(np.int32)
    table = np.zeros((len(pages), width), np.int32)
    for row, (numbers, count) in enumerate(zip(pages, used.tolist(), strict=True)):
        table[row, :count] = numbers[:count]
    return table


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The static facts of one layer's attention: what a backend accepts or refuses.

    A score is scale * q.k, bent into (-softcap, softcap), plus slopes[head] * (key's position -
    query's position); then the mask: the last `window` tokens, and of those, with a `chunk`, the
    ones in the query's own chunk of so many positions. With `sinks` or `token_sinks`, one more
    score per head, or per token and head, takes part in the softmax and has no value.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    dtype: torch.dtype
    device: torch.device
    softcap: float | None = None
    slopes: tuple[float, ...] | None = None
    """ALiBi: one per query head."""
    chunk: int | None = None
    sinks: bool = False
    token_sinks: bool = False
    latent: bool = False
    """Keys serve as values: a page holds one vector per token and key head, not two."""
    codes: Codes | None = None
    """What a page holds in place of numbers of `dtype`."""

    def __str__(self) -> str:
        """One phrase for a log line."""
        seen = "all tokens" if self.window is None else f"the last {self.window} tokens"
        kind = f"{self.num_heads} query and {self.num_kv_heads} key heads of {self.head_dim}"
        kind += ", soft-capped" if self.softcap else ""
        kind += ", with ALiBi" if self.slopes else ""
        kind += ", keys as values" if self.latent else ""
        kind += ", with sinks" if self.sinks or self.token_sinks else ""
        kind += f", {self.codes} pages" if self.codes else ""
        seen += f" in chunks of {self.chunk}" if self.chunk else ""
        return f"{kind} over {seen}, {str(self.dtype).removeprefix('torch.')} on {self.device}"


class Backend(Protocol):
    """One way to compute paged attention. Life cycle: `refuses` is asked once per kind of layer
    while the model is built; then, in each step, `plan` runs once per kind of layer and `forward`
    once per layer with that plan. The step's keys and values are in the pages before `forward`.
    """

    def refuses(self, call: AttentionCall) -> str | None:
        """Why this backend cannot serve such layers, as half a sentence; None if it can."""
        ...

    def plan(self, batch: AttentionBatch, call: AttentionCall) -> Any:
        """Whatever the layers of one kind share in this step: masks, indices."""
        ...

    def forward(
        self, plan: Any, query: Tensor, pages: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """Attend.

        Args:
            plan: what `plan` returned.
            query: [T, num_heads, head_dim], rotated, any row stride.
            pages: [num_pages, page_size, 2, num_kv_heads, head_dim], keys and values; for a
                `latent` call the third axis is 1. With `codes` uint8, the last axis `row_width`.
            sinks: [num_heads] where the call has `sinks`, [T, num_heads] where it has
                `token_sinks`, else None.

        Returns:
            [T, num_heads * head_dim].
        """
        ...
