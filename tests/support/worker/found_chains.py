"""Pages and earlier tokens of steps, found on a device, against what the host finds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from baton_worker.attention import AttentionBatch
from baton_worker.kernels.recurrent.chains import Found, Rows
from baton_worker.layers.ssm.page_segments import Cut

CASES = [
    ([9, 1, 2, 4, 1], [0, 8, 6, 0, 5], 4),
    ([1, 1, 1], [16, 0, 3], 16),
    ([150, 1], [5, 63], 1),
    ([70, 3], [0, 64], 64),
]
"""New tokens and starts of rows, and tokens per page: rows of several programs among them."""


def check(find: Callable[[Rows, int, int], Found], device: torch.device, empty: int) -> None:
    """Behind the rows are `empty` ones without tokens, whose lengths are anything."""
    for counts, starts, size in CASES:
        tables = np.random.default_rng(0).permutation(1000).astype(np.int32).reshape(5, 200)
        batch = AttentionBatch.build(counts, starts, tables[: len(counts)], size, device)
        host, total = Cut(4).plan(batch, Cut(4)), sum(counts)
        ends = batch.query_start_loc, batch.seq_lens, batch.block_table
        beyond = (batch.query_start_loc[-1:], batch.seq_lens[:1], batch.block_table[:1])
        given = (torch.cat((end, *[more] * empty)) for end, more in zip(ends, beyond, strict=True))
        found = find(Rows(*given, total, max(counts)), size, 4)
        ours, theirs = found.chains, host.chains
        for row in range(len(counts)):
            at, of = (slice(c.starts[row], c.stops[row]) for c in (ours, theirs))
            assert ours.pages[at].equal(theirs.pages[of])
            assert ours.firsts[at].equal(theirs.firsts[of])
            begins = (c.begins[s.start : s.stop + 1] for c, s in ((ours, at), (theirs, of)))
            assert torch.equal(*begins)
        unused = ours.firsts < 0
        assert int((~unused).sum()) == len(theirs.pages) and not ours.pages[unused].any()
        assert not ours.begins.diff()[unused].any() and ours.begins[-1] == total
        assert ours.stops[len(counts) :].equal(ours.starts[len(counts) :])
        missing = host.earlier.missing
        assert not found.missing.any() if missing is None else found.missing.equal(missing)
        there = ~found.missing
        assert found.earlier[there].equal(host.earlier.slots[there])
