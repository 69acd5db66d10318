"""A simulated worker answers plans with the recorded tokens."""

from __future__ import annotations

from baton.protocol import NewSequence, Plan, Sampling
from baton.protocol.token_columns import pack, unpack
from baton_scheduler.replay.script import Script
from baton_scheduler.replay.simulated_worker import SimulatedWorker


def plan(step: int, start: int, count: int, new: tuple[NewSequence, ...] = ()) -> Plan:
    return Plan(
        epoch=3,
        step=step,
        rows=pack([0], "I"),
        num_computed=pack([start], "I"),
        num_scheduled=pack([count], "I"),
        samples=b"\1",
        new_sequences=new,
    )


def test_it_samples_what_was_recorded_and_stops_where_that_stopped() -> None:
    worker = SimulatedWorker(epoch=3, token_bytes=1.0)
    new = NewSequence(0, pack([7, 8]), 2, Sampling(9), request="0")
    worker.plans.extend([plan(1, 0, 2, (new,)), plan(2, 2, 1), plan(3, 3, 1)])
    script = Script(logs=[[40, 41]], ended={0})
    first, second, third = (worker.step(script, 1000) for _ in range(3))
    assert (first.epoch, first.step, first.duration_us) == (3, 1, 1000)
    assert unpack(first.tokens).tolist() == [40] and not first.finished
    assert unpack(second.tokens).tolist() == [41] and second.finished == {0: "stop"}
    assert not third.rows


def test_beyond_the_recording_it_goes_on() -> None:
    worker = SimulatedWorker(epoch=3, token_bytes=1.0)
    new = NewSequence(0, pack([7]), 1, Sampling(9), request="0")
    worker.plans.extend([plan(1, 0, 1, (new,)), plan(2, 1, 1)])
    script = Script(logs=[[40]])
    assert [len(worker.step(script, 1).tokens) for _ in range(2)] == [4, 4]
