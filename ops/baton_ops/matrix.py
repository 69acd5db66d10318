"""`baton matrix`: write SUPPORT.md from the results of the last full test run, and nothing else.

A row works when tests marked with its id exist and all of them passed; it is refused when those
tests prove a clear refusal (`@pytest.mark.row("V01", refuses=True)`); else it is absent. A skipped
test proves nothing.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from rich.console import Console

from baton.errors import BatonError
from baton.settings import Settings

Status = Literal["works", "refuses", "absent"]
STATUSES: tuple[Status, ...] = ("works", "refuses", "absent")
_INTRO = """\
# What is supported

Written by `make matrix` from the tests of the last full run (`make test`); do not edit.

- **works**: tests that carry the row's id exist and all of them passed.
- **refuses**: tests prove that it is refused with a sentence that says so.
- **absent**: nothing proves it yet. A skipped test proves nothing.

Architectures are proven on one worker process: there is no tensor parallelism, so no row shows it.
"""
T = TypeVar("T")


class Matrix(Settings, prefix="matrix"):
    """Write the support matrix from the last full test run."""

    features: Path = Path("docs/features.json")
    """Every feature row: id and title, in groups."""
    rows: Path = Path(".baton/rows.json")
    """What the last full test run left."""
    out: Path = Path("SUPPORT.md")
    """Page to write."""


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


class Ledger(msgspec.Struct, frozen=True):
    """What a test run says about the rows. Unknown keys are of no interest here."""

    rows: dict[str, list[Result]]
    selected: str
    failed: int


def _read(path: Path, kind: type[T], advice: str) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise BatonError(f"{path} cannot be read ({error}). {advice}") from error


def check(ledger: Ledger, features: Features) -> None:
    """Refuse results that prove less than they seem to. Raises `BatonError`."""
    if ledger.selected != "full":
        raise BatonError("The last test run was only a part of the tests. Run: make test")
    if ledger.failed:
        raise BatonError(
            f"{ledger.failed} tests of the last run failed. Mend them, then: make test"
        )
    known = {row for group in features.groups for row in group.rows}
    if unknown := sorted(set(ledger.rows) - known):
        raise BatonError(f"Tests are marked with rows that do not exist: {', '.join(unknown)}.")


def status(results: Sequence[Result]) -> Status:
    """What the tests of one row prove."""
    if not results or any(result.outcome != "passed" for result in results):
        return "absent"
    return "works" if any(result.kind == "works" for result in results) else "refuses"


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


def page(features: Features, ledger: Ledger) -> str:
    """SUPPORT.md: counts first, then one table per group. The same for the same results."""
    results = {row: ledger.rows.get(row, []) for group in features.groups for row in group.rows}
    statuses = {row: status(found) for row, found in results.items()}
    lines = [_INTRO, *_summary(features, statuses)]
    for group in features.groups:
        lines += [f"## {group.title}", "", "| id | row | status | tests |", "|---|---|---|---:|"]
        for row, title in group.rows.items():
            shown = statuses[row] if statuses[row] == "absent" else f"**{statuses[row]}**"
            lines.append(f"| {row} | {title} | {shown} | {_tests(results[row])} |")
        lines.append("")
    return "\n".join(lines)


def run(options: Matrix, console: Console) -> None:
    """Read, check, write."""
    features = _read(options.features, Features, "Run this in the root of the repository.")
    ledger = _read(options.rows, Ledger, "Make it with: make test")
    check(ledger, features)
    options.out.write_text(page(features, ledger))
    found = Counter(status(ledger.rows.get(row, [])) for g in features.groups for row in g.rows)
    counts = ", ".join(f"{found[name]} {name}" for name in STATUSES)
    console.print(f"wrote {options.out}: {counts}", highlight=False)


def main() -> None:
    """Write the page, or say what is missing."""
    try:
        run(Matrix.load(sys.argv[1:]), Console())
    except BatonError as error:
        sys.exit(f"baton matrix: {error.message}")


if __name__ == "__main__":
    main()
