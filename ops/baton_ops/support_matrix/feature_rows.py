"""The feature rows, and what the last full test run says about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Status = Literal["works", "refuses", "absent"]
STATUSES: tuple[Status, ...] = ("works", "refuses", "absent")


class Group(msgspec.Struct, frozen=True):
    """Rows that belong together: title by id."""

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
    """What a test run says about the rows. Unknown keys are of no interest here."""

    rows: dict[str, list[Result]]
    selected: str
    failed: int
    registered: frozenset[str]
    """Architectures that the worker's tables name."""
    preprocessors: frozenset[str] = frozenset()
    """Architectures whose media mm-preprocess prepares."""


def status(results: Sequence[Result]) -> Status:
    """What the tests of one row prove."""
    if not results or any(result.outcome != "passed" for result in results):
        return "absent"
    return "works" if any(result.kind == "works" for result in results) else "refuses"
