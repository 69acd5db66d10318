"""One span per leg of a sequence that is traced, none for the others."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from baton.protocol import NewSequence, Sampling
from baton.protocol.token_columns import pack
from baton_worker.engine import spans

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Recorded:
    name: str
    parent: str
    ended: bool = False

    def end(self) -> None:
        assert not self.ended
        self.ended = True


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    made: list[Recorded] = []

    def start(name: str, parent: str = "", attributes: object = None) -> Recorded:
        made.append(Recorded(name, parent))
        return made[-1]

    monkeypatch.setattr(spans, "start", start)
    return made


def sequence(slot: int, trace: str = TRACE) -> NewSequence:
    return NewSequence(slot, pack([1, 2]), 2, Sampling(3), "request", trace)


def test_prefill_then_decode(recorded: list[Recorded]) -> None:
    open_spans = spans.Spans()
    open_spans.enter([sequence(3), sequence(4, trace="")])
    assert [(s.name, s.parent, s.ended) for s in recorded] == [("prefill", TRACE, False)]
    open_spans.sampled([3, 4])
    assert [(s.name, s.ended) for s in recorded] == [("prefill", True), ("decode", False)]
    open_spans.sampled([3])
    open_spans.end([3, 4])
    open_spans.end([3])
    assert [s.ended for s in recorded] == [True, True]


def test_released_during_prefill(recorded: list[Recorded]) -> None:
    open_spans = spans.Spans()
    open_spans.enter([sequence(0)])
    open_spans.end([0])
    assert [(s.name, s.ended) for s in recorded] == [("prefill", True)]
