"""Pages for the next step: each decode row gets what it needs, if need be by preemption."""

from __future__ import annotations

import numpy as np

from baton_scheduler.planning.columns import NewPages
from baton_scheduler.planning.pipeline_rows import decode_rows
from baton_scheduler.sequence import Sequence
from baton_scheduler.slot_table import Ints
from baton_scheduler.workers.worker import Worker


def make_room(worker: Worker) -> tuple[NewPages, list[Sequence], Ints]:
    """Give each decode row that has filled its pages a page in every group, and in windowed groups
    the next prefill chunks theirs. Also returns the decode rows.

    If pages run out, the last sequence in the order of service is preempted. A later sequence never
    preempts an earlier one, so the first one always finishes.
    """
    batch = worker.batch
    decode = decode_rows(worker)
    short = decode[batch.num_scheduled.take(decode) >= batch.capacity.take(decode)].tolist()
    plain = worker.groups.plain
    chunks = {} if plain else _chunks(worker, len(decode))
    grown, preempted = NewPages([], [], [], []), list[Sequence]()
    turn = sorted((*short, *chunks), key=lambda slot: batch.at(slot).key)
    if plain and len(turn) <= worker.pool.num_free:
        grown.add_each(turn, worker.kv.grow_each(turn))
    else:
        _grow(worker, turn, chunks, grown, preempted)
    _grow_ahead(worker, decode, grown)
    return grown, preempted, np.intersect1d(decode, batch.decoding()) if preempted else decode


def _grow(
    worker: Worker,
    slots: list[int],
    chunks: dict[int, int],
    grown: NewPages,
    preempted: list[Sequence],
) -> None:
    """Give pages to slots in order while there are free ones."""
    batch = worker.batch
    for slot in slots:
        if batch.lease_id[slot] and _preempt_for(worker, slot, preempted):
            _extend(worker, slot, chunks.get(slot, 1), grown)


def rows_beside(worker: Worker, waiting: list[int], num_decode: int) -> int:
    """Number of decode rows in the next step: all, unless the first of the `waiting` prompts has an
    image that must run in one step and takes their place."""
    batch = worker.batch
    if not waiting:
        return num_decode
    least = batch.at(waiting[0]).spans.least(int(batch.num_scheduled[waiting[0]]))
    return num_decode if least == 1 else min(num_decode, worker.budget - least)


def _chunks(worker: Worker, num_decode: int) -> dict[int, int]:
    """Slot -> number of prompt tokens in its next chunk, if there are enough pages."""
    batch, chunks, waiting = worker.batch, dict[int, int](), worker.batch.prefilling()
    left = worker.budget - rows_beside(worker, waiting, num_decode)
    for slot in waiting:
        planned = int(batch.num_scheduled[slot])
        chunk = min(left, batch.num_prefillable(slot))
        chunk = batch.at(slot).spans.cut(planned, chunk)
        if chunk <= 0:
            break
        chunks[slot] = chunk
        left -= chunk
    return chunks


def _preempt_for(worker: Worker, slot: int, preempted: list[Sequence]) -> bool:
    """Preempt others until there are pages up to the `_next_end` of a sequence. Returns False if
    there are still none: the sequence itself was preempted, or waits for pages that its own
    in-flight steps free."""
    batch, pool, windowed = worker.batch, worker.pool, bool(worker.groups.windowed)
    kv = worker.kv
    needed = sum(kv.lacking(slot, kv.num_blocks(_next_end(worker, slot))))
    if windowed and needed > pool.num_free:
        worker.free_outside_window(slack=False)
    while batch.lease_id[slot] and needed > pool.num_free:
        last = batch.last()
        if last == slot and windowed and worker.flights.run(slot, int(batch.lease_id[slot])):
            return False
        preempted.append(worker.evict(last))
    return bool(batch.lease_id[slot])


def _extend(worker: Worker, slot: int, count: int, grown: NewPages) -> None:
    """Take pages up to the `_next_end` of a sequence, and for `count` tokens if one page stays free
    for every other sequence. Slots that the worker does not know yet get theirs as they enter."""
    batch, kv, planned = worker.batch, worker.kv, int(worker.batch.num_scheduled[slot])
    least, blocks = kv.num_blocks(_next_end(worker, slot)), kv.num_blocks(planned + count)
    spare = worker.pool.num_free - (len(batch) - 1) * len(worker.groups)
    lacking = kv.lacking(slot, blocks)
    while blocks > least and sum(lacking) > spare:
        blocks -= 1
        lacking = kv.lacking(slot, blocks)
    pages = kv.grow(slot, lacking)
    if batch.sent[slot]:
        grown.add(slot, pages)


def _next_end(worker: Worker, slot: int) -> int:
    """Position after the shortest next step: one token, or an image that must run in one step."""
    planned = int(worker.batch.num_scheduled[slot])
    return planned + worker.batch.at(slot).spans.least(planned)


def _grow_ahead(worker: Worker, decode: Ints, grown: NewPages) -> None:
    """Take pages ahead for rows with a variable number of tokens, if one page stays free for every
    sequence. Rows with drafts take as many as all steps in flight and the next one can fill."""
    batch, size = worker.batch, worker.info.page_size
    if not batch.num_variable_tokens:
        return
    ahead = np.maximum(size, batch.lookahead * (len(worker.flights) + 1))
    lacking = np.minimum(batch.num_scheduled + ahead, batch.max_computed + 1) - batch.capacity
    for slot in decode[batch.variable_tokens[decode] & (lacking[decode] > 0)].tolist():
        free = worker.pool.num_free // len(worker.groups) - len(batch)
        if batch.lease_id[slot] and free > 0:
            count = min(free, -(-int(lacking[slot]) // size))
            grown.add(slot, worker.kv.grow(slot, [count] * len(worker.groups)))
