"""Columns over slots."""

from __future__ import annotations

from baton.protocol import Sampling, Submit
from baton.protocol.token_columns import pack
from baton_scheduler.block_table import BlockTable
from baton_scheduler.queueing.queue import fcfs
from baton_scheduler.sequence import Sequence, sequence
from baton_scheduler.slot_table import SlotTable, StartPages


def arrive(number: int, length: int = 3, max_tokens: int = 4) -> Sequence:
    submit = Submit(number, "r", pack(range(length)), Sampling(max_tokens))
    return sequence("g", submit, "", number, 0.0, fcfs)


def add(batch: SlotTable, one: Sequence) -> int:
    slot = batch.add(one, 0, StartPages([BlockTable(0, [0])], page_size=8), max_model_len=6)
    one.place("w", slot)
    return slot


def test_the_lowest_free_slot_is_used_and_no_grant_twice() -> None:
    batch = SlotTable(3)
    assert [add(batch, arrive(n)) for n in (1, 2)] == [0, 1]
    first = int(batch.lease_id[0])
    batch.remove(0)
    assert add(batch, arrive(3)) == 0
    assert batch.lease_id[0] > first > 0


def test_a_worker_is_told_of_a_release_only_when_it_knows_the_sequence() -> None:
    batch = SlotTable(2)
    for number in (1, 2):
        add(batch, arrive(number))
    batch.enter(1)
    batch.remove(0)
    batch.remove(1)
    assert batch.pending_release == [1]


def test_a_row_prefills_then_decodes_then_waits_at_its_limit() -> None:
    batch = SlotTable(2)
    slot = add(batch, arrive(1, length=3, max_tokens=2))
    assert (batch.prefilling(), batch.decoding().tolist(), batch.pending_prefill_tokens) == (
        [slot],
        [],
        3,
    )
    batch.num_scheduled[slot], batch.pending_prefill_tokens = 3, 0
    assert (batch.prefilling(), batch.decoding().tolist()) == ([], [slot])
    batch.num_scheduled[slot] = 4
    assert batch.decoding().tolist() == []


def test_the_context_bounds_a_row_before_max_tokens_does() -> None:
    batch = SlotTable(1)
    slot = add(batch, arrive(1, length=3, max_tokens=100))
    assert (batch.max_output_tokens[slot], batch.max_computed[slot]) == (3, 5)


def test_last_is_the_latest_arrival_not_the_highest_slot() -> None:
    batch = SlotTable(2)
    add(batch, arrive(9))
    add(batch, arrive(4))
    assert batch.last() == 0
