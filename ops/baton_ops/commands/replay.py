"""`baton replay FILE`: replays a recorded scheduler run, or simulates it with other policies or
encode workers."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import CliPositionalArg
from rich.console import Console
from rich.table import Table

from baton.errors import BatonError, SettingsError
from baton.settings import Settings

_RECORDER, _WHATIF = "baton_scheduler.replay.recorder", "baton_scheduler.replay.simulator"
"""Module imported by name: operator tools do not depend on services."""
_OTHER = ("scheduling_policy", "placement_policy", "encode_workers")
"""Fields that request a simulation."""


class Replay(Settings, prefix="replay"):
    """Apply a recording's events to a new scheduler and compare every decision.

    With `--scheduling-policy`, `--placement-policy` or `--encode-workers`, simulate the recorded
    load unchanged and with these settings, and show the differences: times to first token, prefix
    hits, KV transferred.
    """

    file: CliPositionalArg[Path]
    """Recording written by `baton scheduler --event-log FILE`."""
    scheduling_policy: str = ""
    """fcfs, priority or fair: simulate with this policy instead of comparing decisions."""
    placement_policy: str = ""
    """cost, round-robin, least-loaded or modulo: simulate with this placement policy."""
    encode_workers: int = Field(default=0, ge=0)
    """Simulate with this number of encode workers, as fast as those of the recording; 0 means the
    recorded number."""


def _scheduler(module: str) -> Any:
    if find_spec("baton_scheduler") is None:
        raise SettingsError("Replaying needs the scheduler: pip install 'baton-serve[scheduler]'.")
    return import_module(module)


def rerun(path: Path, **other: str | int) -> int:
    """Simulate a recording unchanged and with other settings, and print the differences. Returns
    0."""
    comparison = _scheduler(_WHATIF).compare(path, **other)
    table = Table(title="mean time to first token, simulated, in seconds")
    for name in ("tenant", "requests", *comparison.names, "change"):
        table.add_column(name, justify="left" if name == "tenant" else "right")
    for change in comparison.changes:
        ratio = change.after / change.before - 1 if change.before else 0.0
        times = (f"{change.before:.3f}", f"{change.after:.3f}", f"{ratio:+.1%}")
        table.add_row(change.tenant or "(none)", f"{change.requests:,}", *times)
    console = Console()
    console.print(table)
    console.print(_figures(comparison))
    return 0


def _figures(comparison: Any) -> Table:
    table = Table(title="all of them together, simulated")
    for name in ("", *comparison.names):
        table.add_column(name, justify="right" if name else "left")
    before, after = comparison.figures
    table.add_row("prompt tokens found in a cache", f"{before.hits:.1%}", f"{after.hits:.1%}")
    table.add_row("mean time to first token", f"{before.mean:.3f} s", f"{after.mean:.3f} s")
    table.add_row("95th percentile", f"{before.p95:.3f} s", f"{after.p95:.3f} s")
    table.add_row("tokens moved between workers", f"{before.moved:,}", f"{after.moved:,}")
    return table


def report(path: Path) -> int:
    """Replay a recording and print the result. Returns the exit code."""
    verdict = _scheduler(_RECORDER).replay(path)
    same = verdict.difference is None
    table = Table(show_header=False)
    table.add_row("events", f"{verdict.num_events:,}")
    table.add_row("digests compared", f"{verdict.num_ticks:,}")
    if verdict.truncated:
        table.add_row("end", "inside a frame: the writer was stopped there")
    table.add_row(
        "verdict",
        "[green]every decision is the same"
        if same
        else f"[red]differs at event {verdict.difference:,}",
    )
    Console().print(table)
    return 0 if same else 1


def main() -> None:
    """Print the result; exits with 1 on a difference, 2 when there is no recording."""
    try:
        options = Replay.load(sys.argv[1:])
        settings = options.model_dump(include=set(_OTHER))
        code = rerun(options.file, **settings) if any(settings.values()) else report(options.file)
    except BatonError as error:
        print(f"baton replay: {error.message}", file=sys.stderr)
        sys.exit(2)
    sys.exit(code)


if __name__ == "__main__":
    main()
