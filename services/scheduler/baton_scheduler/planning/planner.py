"""Planner: builds a worker's next plan from decode rows and prefill chunks under a token budget.

Batching is continuous (Orca, OSDI 2022): rows join and leave at every step. Pages are allocated one
at a time (vLLM, SOSP 2023); prompts run in chunks that share steps with decode rows (Sarathi-Serve,
OSDI 2024). Plans are sent ahead of results: a row counts as advanced once it is planned, so the
next plan can run it again, one position further.
"""

from __future__ import annotations

import numpy as np

from baton.protocol import NewSequence, Plan
from baton_scheduler.planning.background_share import Candidates, candidates
from baton_scheduler.planning.columns import NewPages, PageCopies, ScheduledRows
from baton_scheduler.planning.encoder_budget import EncoderBudget
from baton_scheduler.planning.page_growth import make_room, rows_beside
from baton_scheduler.planning.pipeline_rows import fills_pipeline
from baton_scheduler.planning.plan_message import plan_message
from baton_scheduler.planning.prefill_budget import prefill_budget
from baton_scheduler.sequence import Sequence
from baton_scheduler.slot_table import Ints, SlotTable
from baton_scheduler.workers.worker import Worker


def plan(
    worker: Worker,
    now: float,
    most: int = 1,
    encoder_tokens: int = 0,
    most_seconds: float = 0.0,
) -> tuple[Plan | None, list[Sequence]]:
    """Plan a worker's next step. Returns the plan and the sequences preempted for lack of pages.

    The plan is None if there is nothing to do. The worker's batch is advanced as if the step had
    run, and the step is recorded in `worker.flights`. A plan without rows lets an idle worker
    release slots. If every row decodes, the plan covers up to `most` steps, each with its own
    record.

    A step encodes media of about `encoder_tokens` embeddings; 0 means the worker's token budget.
    Prompts make a step with decode rows no longer than `most_seconds`; 0 means the
    default of `prefill_budget`.
    """
    worker.free_outside_window()
    pages, preempted, decode = make_room(worker)
    encoder = EncoderBudget(worker, encoder_tokens or worker.budget)
    rows = _choose(worker, decode, encoder, most_seconds)
    if not len(rows.slots) and (worker.flights or not worker.batch.pending_release):
        return None, preempted
    turns = _repeat(worker, rows, pages, most)
    # All pages of this plan are taken by now, so its evictions are complete.
    fresh = _fresh(worker.batch, rows)
    moves = PageCopies(*worker.allocator.swaps_for(fresh), *worker.allocator.copies(fresh))
    enter = _enter(worker, fresh, pages)
    message = plan_message(worker, rows, turns, enter, pages, moves, now)
    return message, preempted


def _choose(
    worker: Worker, decode: Ints, encoder: EncoderBudget, most_seconds: float
) -> ScheduledRows:
    """All decode rows, then prefill chunks in the order of service within the budgets of tokens and
    time; background sequences are limited by `candidates`."""
    batch = worker.batch
    if worker.groups.windowed:  # Rows without pages skip this step.
        decode = decode[batch.num_scheduled[decode] < batch.capacity[decode]]
    able = candidates(worker, decode, batch.prefilling())
    decode, waiting = able.decode, able.waiting
    if not waiting:
        return ScheduledRows(decode, np.ones(len(decode), np.int64), decode=True)
    decode = decode[: rows_beside(worker, waiting, len(decode))]
    left = prefill_budget(worker, len(decode), most_seconds, _least(worker, waiting[0]))
    slots, counts = _chunks(worker, able, left, encoder)
    batch.pending_prefill_tokens -= sum(counts)
    ones = np.ones(len(decode), np.int64)
    return ScheduledRows(
        np.concatenate((decode, np.array(slots, np.int64))),
        np.concatenate((ones, np.array(counts, np.int64))),
        decode=not slots,
        waiting=True,
    )


def _chunks(
    worker: Worker, able: Candidates, left: int, encoder: EncoderBudget
) -> tuple[list[int], list[int]]:
    """The waiting prompts that have a chunk in this step of `left` tokens, and the tokens of each
    chunk."""
    batch, slots, counts = worker.batch, list[int](), list[int]()
    behind = False
    for slot in able.waiting:
        if batch.background[slot] and not behind:
            behind, left = True, min(left, able.background_tokens)
        if left <= 0:
            break
        sequence, planned = batch.at(slot), int(batch.num_scheduled[slot])
        rest = batch.num_prefillable(slot)
        if _least(worker, slot) > left:
            break  # It comes first in the next step, which has room for it.
        most = min(left, rest, int(batch.capacity[slot]) - planned)
        chunk = sequence.spans.cut(planned, most)
        if sequence.submit.media and not sequence.single_step:
            chunk = encoder.cut(sequence, planned, chunk)
        if not chunk:
            continue
        slots.append(slot)
        counts.append(chunk)
        left -= chunk
    return slots, counts


def _least(worker: Worker, slot: int) -> int:
    """The fewest tokens that the next chunk of a prompt may have."""
    batch, sequence = worker.batch, worker.batch.at(slot)
    planned = int(batch.num_scheduled[slot])
    if sequence.single_step:
        return batch.num_prefillable(slot)
    return sequence.spans.least(planned)


def _fresh(batch: SlotTable, rows: ScheduledRows) -> list[int]:
    """Slots among the rows that the worker does not know yet."""
    return rows.slots[~batch.sent[rows.slots]].tolist() if batch.num_unsent else []


def _repeat(worker: Worker, rows: ScheduledRows, pages: NewPages, most: int) -> Ints:
    """Number of steps that each row runs in: one, or as many as its limit and the free pages
    allow."""
    slots = rows.slots
    one: Ints = np.ones(len(slots), np.int64)
    if rows.waiting or not len(slots) or not rows.decode:
        return one
    if fills_pipeline(worker):
        return one  # Other rows run between two steps of these.
    turns, needed = _affordable(worker, slots, most)
    if needed is None:
        return one  # Rows have the page of one step already, which the steps in flight may fill.
    _grow(worker, slots, needed, pages)
    return turns


def _affordable(worker: Worker, slots: Ints, most: int) -> tuple[Ints, Ints | None]:
    """Steps of each row, at most `most`, and the pages per group that it needs for them; None if
    the free pages do not allow two."""
    batch = worker.batch
    left = batch.max_computed[slots] - batch.num_scheduled[slots]
    drafts = batch.lookahead[slots]
    while most > 1:
        turns: Ints = np.minimum(left, most)
        # Steps in flight may accept drafts too, which the estimated positions do not include.
        ahead = np.minimum(turns + drafts * (turns + len(worker.flights)), left + 1)
        beyond = batch.num_scheduled[slots] + np.maximum(turns, ahead) - batch.capacity[slots]
        needed = np.maximum(-(-beyond // worker.info.page_size), 0)
        if needed.sum() * len(worker.groups) <= worker.pool.num_free:
            return turns, needed
        most //= 2
    return left, None


def _grow(worker: Worker, slots: Ints, needed: Ints, pages: NewPages) -> None:
    """Give each row the pages that it needs; most often one, in a single group."""
    short = np.flatnonzero(needed)
    wanting, counts = slots[short].tolist(), needed[short].tolist()
    if worker.groups.plain and counts.count(1) == len(counts):
        pages.add_each(wanting, worker.kv.grow_each(wanting))
        return
    for slot, count in zip(wanting, counts, strict=True):
        pages.add(slot, worker.kv.grow(slot, [count] * len(worker.groups)))


def _enter(worker: Worker, fresh: list[int], pages: NewPages) -> tuple[NewSequence, ...]:
    """The rows that the worker does not know yet, as new sequences with all their pages."""
    batch = worker.batch
    for slot in fresh:
        pages.add(slot, batch.pages[slot])
        batch.enter(slot)
    return tuple(batch.at(slot).entry(int(batch.num_cached_tokens[slot])) for slot in fresh)
