"""Support level of each architecture.

registered       its name is in a table of the worker
preprocessor     its requests can be converted to model input: it needs only a tokenizer, or
                 mm-preprocess handles its media
key mapping      a test passed that loads one of its checkpoints, where a missing or unused tensor
                 is an error
runtime          every test of its row passed: logits and tokens equal those of the reference
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.table import Table

from baton_ops.support_matrix.feature_rows import (
    Features,
    Result,
    RowLedger,
    status,
)

_MEDIA = ("V", "A")
"""First letters of the rows of architectures with image or audio input."""
NAMES = ("registered", "preprocessor", "key mapping", "runtime")


class Levels(NamedTuple):
    """Levels of one architecture."""

    row: str
    architecture: str
    registered: bool
    preprocessor: bool
    keys: bool
    runtime: bool

    @property
    def reached(self) -> tuple[bool, ...]:
        """Return whether each level is reached, in the order of `NAMES`."""
        return self[2:]


def levels(features: Features, ledger: RowLedger) -> Iterator[Levels]:
    """Yield the levels of every architecture that has a row, in row order."""
    rows = {row: title for group in features.groups for row, title in group.rows.items()}
    for row, title in rows.items():
        if "." not in row:
            yield _levels(row, title, ledger, ledger.rows.get(row, []))


def _levels(row: str, title: str, ledger: RowLedger, results: Sequence[Result]) -> Levels:
    media = row.startswith(_MEDIA)
    registered = title in ledger.registered
    return Levels(
        row,
        title,
        registered,
        title in ledger.preprocessors if media else registered,
        any(result.outcome == "passed" and result.kind == "works" for result in results),
        status(results) == "works",
    )


def markdown(levels: Sequence[Levels]) -> list[str]:
    """Return the lines of a Markdown table, preceded by a count."""
    lines = ["| level | architectures |", "|---|---:|"]
    lines += [f"| {name} | {count} of {len(levels)} |" for name, count in totals(levels).items()]
    lines += ["", f"| id | architecture | {' | '.join(NAMES)} |", "|---|---|:-:|:-:|:-:|:-:|"]
    for one in levels:
        cells = " | ".join("✓" if reached else "" for reached in one.reached)
        lines.append(f"| {one.row} | {one.architecture} | {cells} |")
    return [*lines, ""]


def totals(levels: Sequence[Levels]) -> Mapping[str, int]:
    """Return the number of architectures per level."""
    return {name: sum(one.reached[i] for one in levels) for i, name in enumerate(NAMES)}


def table(levels: Sequence[Levels]) -> Table:
    """Return the table for the terminal."""
    result = Table("id", "architecture", *NAMES)
    for one in levels:
        result.add_row(one.row, one.architecture, *("yes" if r else "-" for r in one.reached))
    result.add_section()
    result.add_row("", "all", *map(str, totals(levels).values()))
    return result
