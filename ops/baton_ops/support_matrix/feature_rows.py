"""Feature rows and their results in the last full test run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Status = Literal["works", "refuses", "absent"]
STATUSES: tuple[Status, ...] = ("works", "refuses", "absent")


class Group(msgspec.Struct, frozen=True):
    """A group of rows: title by id."""

    title: str
    rows: dict[str, str]


class Features(msgspec.Struct, frozen=True):
    """All feature rows."""

    groups: list[Group]


class Result(msgspec.Struct, frozen=True):
    """One test of one row."""

    test: str
    outcome: str
    kind: Literal["works", "refuses"]


class RowLedger(msgspec.Struct, frozen=True):
    """Results of a test run by row. Unknown fields are ignored."""

    rows: dict[str, list[Result]]
    selected: str
    failed: int
    registered: frozenset[str]
    """Architectures registered in the worker's tables."""
    preprocessors: frozenset[str] = frozenset()
    """Architectures whose media mm-preprocess supports."""

    def with_card(self, card: CardLedger) -> RowLedger:
        """The same with the results of a GPU run for tests that were skipped without one."""
        rows = {row: [*results] for row, results in self.rows.items()}
        for row, results in card.rows.items():
            ran = [result for result in results if result.outcome != "skipped"]
            tests = {result.test for result in ran}
            others = [r for r in rows.get(row, []) if r.test not in tests or r.outcome != "skipped"]
            rows[row] = [*others, *ran]
        return msgspec.structs.replace(self, rows=rows, failed=self.failed + card.failed)


class CardLedger(msgspec.Struct, frozen=True):
    """Results of tests on a machine with a GPU by row. Unknown fields are ignored."""

    rows: dict[str, list[Result]]
    failed: int
    card: str
    """Name of the GPU."""
    finished: str


def status(results: Sequence[Result]) -> Status:
    """Return the status that the tests of one row prove."""
    if not results or any(result.outcome != "passed" for result in results):
        return "absent"
    return "works" if any(result.kind == "works" for result in results) else "refuses"
