"""docs/performance.md is what the records say, and tables of one title become one."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from baton.errors import BatonError
from baton_ops.bench import page
from baton_ops.bench.page import Entry, markdown, section, stale, table, text_of
from baton_ops.bench.record import Cell, Machine, Record, Table, read_all


def record(day: int, machine: str, *rows: tuple[Cell, ...], columns: int = 2) -> Record:
    """A record of one table about peers."""
    part = Table(
        "peers", "Rate", ("system", "1", "8")[:columns], rows, "make it", 2, "", ("Fine.",)
    )
    return Record(date(2026, 1, day), Machine(machine, "a CPU"), (part,))


def test_the_page_is_fresh() -> None:
    assert not stale()


def test_another_page_is_stale(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    assert stale(tmp_path)
    (tmp_path / "performance.md").write_text(markdown([]))
    assert not stale(tmp_path)


def test_every_record_and_plot_of_the_page_exists() -> None:
    records = read_all(page.DOCS / "benchmarks")
    images = {part.image for record in records for part in record.tables if part.image}
    assert records and images
    assert all(f": benchmarks/{record.file_name}\n" in markdown(records) for record in records)
    assert all((page.DOCS / "images" / name).is_file() for name in images)


@pytest.mark.parametrize(
    ("cell", "decimals", "text"),
    [
        (None, 2, ""),
        ("a | b", 2, "a \\| b"),
        (97033, None, "97,033"),
        (3.0, 2, "3.00"),
        ([3.2, 2.65, 3], 2, "2.65 to 3.20"),
        ([7.5, 7.5], None, "7.5"),
    ],
)
def test_text_of_a_cell(cell: Cell, decimals: int | None, text: str) -> None:
    assert text_of(cell, decimals) == text


def test_a_table_renders() -> None:
    found = record(2, "cpu", ("a", 1.5), ("b", None))
    assert table([Entry(found, found.tables[0])]).splitlines() == [
        "### Rate",
        "",
        "Command: `make it`",
        "",
        "| machine | system | 1 |",
        "|---|---|---|",
        "| [cpu, 2026-01-02] | a | 1.50 |",
        "| [cpu, 2026-01-02] | b |  |",
        "",
        "- cpu: Fine.",
    ]


def test_a_newer_row_replaces_an_older_one_of_its_machine() -> None:
    records = [record(3, "cpu", ("a", 3)), record(2, "old", ("a", 2)), record(1, "cpu", ("a", 1))]
    text = section("peers", records)
    assert "[cpu, 2026-01-03] | a | 3.00" in text
    assert "[old, 2026-01-02] | a | 2.00" in text
    assert "2026-01-01" not in text


def test_tables_of_one_title_have_the_same_columns() -> None:
    records = [record(3, "cpu", ("a", 3)), record(2, "old", ("a", 2, 4), columns=3)]
    with pytest.raises(BatonError, match="columns of 'Rate'"):
        section("peers", records)
