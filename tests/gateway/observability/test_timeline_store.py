"""Stored timelines: only the latest, and only for their owner."""

from __future__ import annotations

from baton.protocol import PhaseTimes
from baton_gateway.observability.request_timeline import RequestTimeline
from baton_gateway.observability.timeline_store import TimelineStore


def test_only_the_latest_are_remembered_and_only_for_their_owner() -> None:
    ledger = TimelineStore(2, lambda times: None)
    accounts = [RequestTimeline(f"req_{n:032x}", "/") for n in range(3)]
    for number, one in enumerate(accounts):
        ledger.keep(one, "me")
        ledger.submitted(one, {number: 0})
    assert (len(ledger), ledger.num_outstanding) == (2, 2)
    assert ledger.find(accounts[0].id, "me") is None
    assert ledger.find(f"chatcmpl-{1:032x}", "me") is accounts[1]
    assert ledger.find(accounts[1].id, "you") is None
    ledger.record([(0, PhaseTimes()), (1, PhaseTimes(queued=1.0)), (99, PhaseTimes())])
    assert ledger.num_outstanding == 1 and accounts[1].explain().choices[0].queue_ms == 1000.0


def test_a_ledger_of_nothing_remembers_nothing() -> None:
    ledger = TimelineStore(0, lambda times: None)
    one = RequestTimeline(f"req_{1:032x}", "/")
    ledger.keep(one, "")
    ledger.submitted(one, {7: 0})
    assert (len(ledger), ledger.num_outstanding) == (0, 0)


def test_phase_times_are_passed_on_remembered_or_not() -> None:
    spent: list[PhaseTimes] = []
    ledger = TimelineStore(0, spent.append)
    ledger.record([(7, PhaseTimes(queued=1.0))])
    assert spent == [PhaseTimes(queued=1.0)]
