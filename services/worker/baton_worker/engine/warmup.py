"""First steps of an engine, before requests arrive. Libraries choose and build their kernels at the
first step of a shape: a prompt chunk and some decode batches here. Runs through the same plans as
real work.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from baton.protocol import NewSequence, Plan, Pooling, PoolingInfo, Sampling
from baton.protocol.token_columns import pack
from baton_worker.engine.engine_config import EngineConfig
from baton_worker.kernels import triton

_CHUNK = 128
"""Prompt tokens of the warm-up; of longer chunks those with kernels in Triton, see `_chunks`."""
_SHORT = 4
"""Prompt tokens of each further sequence: they are there to decode together."""
_PAGE_BYTES = len(pack([0], "I"))
_ROWS = (1, 2, 4, 8, 16, 32)
"""Decode batch sizes."""
_SAMPLING = Sampling(1, top_k=2, top_p=0.9)
"""It runs every kernel of a sampler on a GPU."""


def plans(resolved: EngineConfig) -> Iterator[Plan]:
    """Plans for an empty batch; they release what they enter."""
    step = 0
    if resolved.pooling is not None and not resolved.pooling.generates:
        yield from _pooled(resolved, resolved.pooling)
        return
    for rows in _ROWS:
        pages = _pages_per_row(resolved, rows)
        if pages == 0 or rows > resolved.max_num_seqs:
            return
        # Both steps sample, so two tokens are added.
        room = min(pages * resolved.page_size, resolved.max_model_len) - 2
        most = min(room, resolved.max_num_batched_tokens // rows)
        if most < 1:
            return
        for chunk in _chunks(resolved, most) if rows == 1 else (min(_SHORT, most),):
            yield _prefill(step, rows, pages, chunk, len(resolved.groups.windows))
            yield _decode(step + 1, rows, chunk)
            yield Plan(0, step + 2, b"", b"", b"", b"", release=pack(range(rows), "I"))
            step += 3


def _chunks(resolved: EngineConfig, most: int) -> list[int]:
    """Prompt tokens of sequences alone. Sizes of tiles in Triton follow from the number of rows,
    and a weight may be unpacked for many: so each doubling is compiled, and the most."""
    sizes = [min(_CHUNK, most)]
    while triton.runs(resolved.build.device) and sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes


def onto(page: int, plan: Plan) -> Plan:
    """The plan with this page in the place of every page: what it computes is meaningless, and no
    other page is written."""
    return msgspec.structs.replace(plan, pages=pack([page] * (len(plan.pages) // _PAGE_BYTES)))


def _pooled(resolved: EngineConfig, info: PoolingInfo) -> Iterator[Plan]:
    """Some texts, and no decode."""
    for step, rows in enumerate((1, 4)):
        pages = _pages_per_row(resolved, rows)
        room = min(pages * resolved.page_size, info.max_model_len)
        length = min(_CHUNK // rows, room, resolved.max_num_batched_tokens // rows)
        if length < 1 or rows > resolved.max_num_seqs:
            return
        plan = _prefill(step * 2, rows, pages, length, len(resolved.groups.windows))
        texts = tuple(
            NewSequence(s.slot, s.tokens, s.num_prompt, Sampling(0), pooling=Pooling(info.reach))
            for s in plan.new_sequences
        )
        yield msgspec.structs.replace(plan, new_sequences=texts, samples=bytes(rows))
        yield Plan(0, step * 2 + 1, b"", b"", b"", b"", release=pack(range(rows), "I"))


def _pages_per_row(resolved: EngineConfig, rows: int) -> int:
    alone = rows == 1 and triton.runs(resolved.build.device)
    longest = max(_CHUNK, resolved.max_num_batched_tokens if alone else 0)
    length = min(longest + 2, resolved.max_model_len)
    enough = -(-length // resolved.page_size)
    return min(enough, resolved.num_pages // (rows * len(resolved.groups.windows)))


def _prefill(step: int, rows: int, pages: int, chunk: int, groups: int) -> Plan:
    """Each row gets so many pages in every group."""
    tokens = pack([0] * chunk)
    return Plan(
        epoch=0,
        step=step,
        rows=pack(range(rows), "I"),
        num_computed=pack([0] * rows, "I"),
        num_scheduled=pack([chunk] * rows, "I"),
        samples=pack([1] * rows, "B"),
        new_sequences=tuple(NewSequence(slot, tokens, chunk, _SAMPLING) for slot in range(rows)),
        page_rows=pack([*range(rows)] * groups, "I"),
        page_counts=pack([pages] * rows * groups, "I"),
        pages=pack(range(rows * pages * groups), "I"),
        page_groups=bytes(group for group in range(groups) for _ in range(rows)),
    )


def _decode(step: int, rows: int, start: int) -> Plan:
    return Plan(
        epoch=0,
        step=step,
        rows=pack(range(rows), "I"),
        num_computed=pack([start] * rows, "I"),
        num_scheduled=pack([1] * rows, "I"),
        samples=pack([1] * rows, "B"),
    )
