"""A kind of work is measured once for a card and its packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_worker.platform.measured_table import MeasuredTable, Times


def test_a_kind_is_measured_once(tmp_path: Path) -> None:
    measured = list[str]()

    def times(card: str, kind: str, *names: str, facts: tuple[str, ...] = ()) -> Times:
        def measure() -> Times:
            measured.append(kind)
            return {name: {"a case": 1.5} for name in names}

        return MeasuredTable(tmp_path, "work", card, facts, ("torch", "no-such-package")).times(
            kind, names, measure
        )

    assert times("a card", "wide", "a") == times("a card", "wide", "a") == {"a": {"a case": 1.5}}
    assert measured == ["wide"]
    # A contestant more, another kind, another card, another fact.
    times("a card", "wide", "a", "b")
    times("a card", "narrow", "a")
    times("another", "wide", "a")
    times("a card", "wide", "a", facts=("16",))
    assert measured == ["wide", "wide", "narrow", "wide", "wide"]
    assert len(list(tmp_path.glob("work-*.json"))) == 3
    for path in tmp_path.glob("*.json"):
        path.write_text("{")
    times("a card", "wide", "a")
    assert len(measured) == 6, "what is no table is measured again"


def test_without_a_place_it_is_measured_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "models").write_text("no folder can be made here")
    measured = list[str]()

    def measure() -> Times:
        measured.append("once more")
        return {"a": {"a case": 1.5}}

    for number in (1, 2):
        table = MeasuredTable(tmp_path / "models" / "measured", "work", "a card", (), ())
        assert table.times("wide", ("a",), measure) == {"a": {"a case": 1.5}}
        assert len(measured) == number
    assert "what is measured on a card is not kept" in caplog.text
