"""`baton matrix`: writes SUPPORT.md from the results of the last full test run and prints the
support levels of the architectures.

A row works when tests marked with its id exist and all passed; it is refused when those tests prove
a clear refusal (`@pytest.mark.row("V01", refuses=True)`); else it is absent. Skipped and failed
tests prove nothing; the page states if the run had any.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TypeVar

import msgspec
from rich.console import Console

from baton.errors import BatonError
from baton.process.lifecycle import fail
from baton.settings import Settings
from baton_ops.support_matrix.feature_rows import (
    STATUSES,
    CardLedger,
    Features,
    Result,
    RowLedger,
    Status,
    status,
)
from baton_ops.support_matrix.levels import levels, markdown, table

_INTRO = """\
# What is supported

Written by `make matrix` from the tests of the last full run (`make test`); do not edit.

- **works**: tests that carry the row's id exist and all of them passed.
- **refuses**: tests prove that it is refused with a sentence that says so.
- **absent**: nothing proves it yet. A skipped test proves nothing.

Kernels for GPUs are proven by Triton's interpreter and by compiling them for compute capability 8.0
and 9.0. Rows that only a GPU can prove are absent unless a run on one is given (`--card-rows`).
"""
_CARD = """\
Tests that need a GPU ran on {card}, {day}.
"""
_LEVELS = """\
## Architectures, level by level

- **registered**: the worker's tables name it.
- **preprocessor**: what a request carries can be made into its input.
- **key mapping**: a test that loads one of its checkpoints passed; there, a tensor that is missing
  or left over is an error.
- **runtime**: every test of its row passed.
"""
_FAILED = """\
**Tests of that run that failed: {failed}.** A row that has one of them is absent.
"""
T = TypeVar("T")


class Matrix(Settings, prefix="matrix"):
    """Write the support matrix from the last full test run."""

    features: Path = Path("docs/features.json")
    """Every feature row: id and title, in groups."""
    rows: Path = Path(".baton/rows.json")
    """Results of the last full test run."""
    card_rows: tuple[Path, ...] = ()
    """Results of tests on a machine with a GPU (`pytest --card-rows FILE`), which count where the
    full run skipped them."""
    out: Path = Path("SUPPORT.md")
    """Page to write."""


def _read(path: Path, kind: type[T], advice: str) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise BatonError(f"{path} cannot be read ({error}). {advice}") from error


def check(ledger: RowLedger, features: Features) -> None:
    """Reject incomplete or inconsistent results. Raises `BatonError`."""
    if ledger.selected != "full":
        raise BatonError("The last test run was only a part of the tests. Run: make test")
    rows = {row for group in features.groups for row in group.rows}
    if unknown := sorted(set(ledger.rows) - rows):
        raise BatonError(f"Tests are marked with rows that do not exist: {', '.join(unknown)}.")


def _tests(results: Sequence[Result]) -> str:
    passed = sum(result.outcome == "passed" for result in results)
    return str(passed) if passed == len(results) else f"{passed} of {len(results)}"


def _summary(features: Features, statuses: Mapping[str, Status]) -> list[str]:
    lines = ["| group | works | refuses | absent | rows |", "|---|---:|---:|---:|---:|"]
    total: Counter[Status] = Counter()
    for group in features.groups:
        counts = Counter(statuses[row] for row in group.rows)
        total += counts
        lines.append(_counted(group.title, counts))
    return [*lines, _counted("**all**", total), ""]


def _counted(title: str, counts: Counter[Status]) -> str:
    cells = [str(counts[status]) for status in STATUSES]
    return f"| {title} | {' | '.join(cells)} | {counts.total()} |"


def page(features: Features, ledger: RowLedger, cards: Sequence[CardLedger] = ()) -> str:
    """Return the text of SUPPORT.md: counts, then a table per group. Deterministic."""
    results = {row: ledger.rows.get(row, []) for group in features.groups for row in group.rows}
    statuses = {row: status(results_of_row) for row, results_of_row in results.items()}
    failed = [_FAILED.format(failed=ledger.failed)] if ledger.failed else []
    ran = {_CARD.format(card=one.card, day=one.finished[:10]): None for one in cards}
    lines = [_INTRO, *ran, *failed, *_summary(features, statuses)]
    for group in features.groups:
        lines += [f"## {group.title}", "", "| id | row | status | tests |", "|---|---|---|---:|"]
        for row, title in group.rows.items():
            shown = statuses[row] if statuses[row] == "absent" else f"**{statuses[row]}**"
            lines.append(f"| {row} | {title} | {shown} | {_tests(results[row])} |")
        lines.append("")
    lines += [_LEVELS, *markdown([*levels(features, ledger)])]
    return "\n".join(lines)


def run(options: Matrix, console: Console) -> None:
    """Read, check and write."""
    features = _read(options.features, Features, "Run this in the root of the repository.")
    ledger = _read(options.rows, RowLedger, "Make it with: make test")
    advice = "Make it on a machine with a GPU: pytest tests/gpu --card-rows FILE"
    cards = [_read(path, CardLedger, advice) for path in options.card_rows]
    ledger = reduce(RowLedger.with_card, cards, ledger)
    check(ledger, features)
    options.out.write_text(page(features, ledger, cards))
    statuses = Counter(status(ledger.rows.get(row, [])) for g in features.groups for row in g.rows)
    console.print(table([*levels(features, ledger)]))
    counts = ", ".join(f"{statuses[name]} {name}" for name in STATUSES)
    console.print(f"wrote {options.out}: {counts}", highlight=False)


def main() -> None:
    """Write the page, or print an error."""
    try:
        run(Matrix.load(sys.argv[1:]), Console())
    except BatonError as error:
        fail("baton matrix", error)


if __name__ == "__main__":
    main()
