"""The pages of each row of a step and the tokens before each page, computed on the device: one
launch, whose shape follows from the numbers of rows and tokens alone. The twin on the host is
`layers.ssm.page_segments.Cut`."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from baton_worker.kernels.recurrent.chains import Found, Rows, empty_chains

_AT_ONCE = 64
"""Pages or tokens that a program looks up at once."""


@triton.jit(do_not_specialize=["table_width", "num_tokens"])
def _find(
    query_starts,
    lengths,
    page_table,
    starts,
    stops,
    pages,
    firsts,
    begins,
    earlier,
    missing,
    table_width,
    num_tokens,
    PAGE_SIZE: tl.constexpr,
    TAPS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Some pages and some tokens of one row. A row of n tokens has n / PAGE_SIZE + 2 pages at most,
    one before its first token included: so the entries of a row begin at a place that only the
    number of tokens before it decides."""
    row = tl.program_id(0).to(tl.int64)
    begin, last_query = tl.load(query_starts + row), tl.load(query_starts + row + 1)
    table, count = page_table + row * table_width, last_query - begin
    position = tl.load(lengths + row) - count
    # A page that begins gets its state from the one before it.
    carried = (position % PAGE_SIZE == 0) & (position > 0)
    first_block = position // PAGE_SIZE - carried.to(tl.int32)
    num_pages = tl.where(count > 0, (position + count - 1) // PAGE_SIZE - first_block + 1, 0)
    first_entry = begin // PAGE_SIZE + 2 * row
    num_entries = last_query // PAGE_SIZE + 2 * (row + 1) - first_entry
    tl.store(starts + row, first_entry)
    tl.store(stops + row, first_entry + num_pages)
    first_item, stride = tl.program_id(1) * AT_ONCE, tl.num_programs(1) * AT_ONCE
    for start in range(first_item, num_entries + 1, stride):
        item = start + tl.arange(0, AT_ONCE)
        used, tokens_before = item < num_pages, position - (first_block + item) * PAGE_SIZE
        page = tl.load(table + first_block + item, mask=used, other=0).to(tl.int64)
        tl.store(pages + first_entry + item, page, mask=item < num_entries)
        first_query = tl.minimum(tl.maximum(tokens_before, 0), PAGE_SIZE)
        tl.store(
            firsts + first_entry + item, tl.where(used, first_query, -1), mask=item < num_entries
        )
        query = begin + tl.minimum(tl.maximum(-tokens_before, 0), count)
        # The entry behind the last one is the first of the next row, which stores the same.
        tl.store(
            begins + first_entry + item, tl.where(used, query, last_query), mask=item <= num_entries
        )
    for start in range(first_item, count, stride):
        token = start + tl.arange(0, AT_ONCE)
        inside = token < count
        for tap in tl.static_range(1, TAPS):
            source = position + token - tap
            source_position = tl.maximum(source, 0)
            page = tl.load(table + source_position // PAGE_SIZE, mask=inside, other=0).to(tl.int64)
            target = (tap - 1) * num_tokens + begin + token
            tl.store(earlier + target, page * PAGE_SIZE + source_position % PAGE_SIZE, mask=inside)
            tl.store(missing + target, (source < 0).to(tl.uint8), mask=inside)


def find(rows: Rows, page_size: int, taps: int) -> Found:
    """See `kernels.recurrent.chains.find`."""
    number, device = len(rows.lengths), rows.lengths.device
    chains = empty_chains(rows, page_size)
    earlier = torch.empty((taps - 1, rows.tokens), dtype=torch.int64, device=device)
    missing = torch.empty((taps - 1, rows.tokens), dtype=torch.uint8, device=device)
    launch: Any = _find[(number, -(-rows.longest // _AT_ONCE))]
    launch(
        *(rows.query_starts, rows.lengths, rows.page_table, *chains, earlier, missing),
        *(rows.page_table.stride(0), rows.tokens),
        **{"PAGE_SIZE": page_size, "TAPS": taps, "AT_ONCE": _AT_ONCE, "num_warps": 1},
    )
    return Found(chains, earlier, missing.view(torch.bool))
