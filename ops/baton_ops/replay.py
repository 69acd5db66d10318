"""`baton replay FILE`: reproduce a recorded scheduler run, decision by decision."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from pydantic import BaseModel
from pydantic_settings import CliApp, CliPositionalArg
from rich.console import Console
from rich.table import Table

from baton.errors import BatonError, SettingsError

_RECORDER = "baton_scheduler.recorder"
"""Found by name: operators' tools import no service."""


class Replay(BaseModel, use_attribute_docstrings=True):
    """Apply a recording's events to a new scheduler and compare every decision."""

    file: CliPositionalArg[Path]
    """What `baton scheduler --record FILE` wrote."""

    def cli_cmd(self) -> None:
        """Print the verdict. Exits with 1 at the first difference, 2 when there is no recording."""
        try:
            sys.exit(report(self.file))
        except BatonError as error:
            print(f"baton replay: {error.message}", file=sys.stderr)
            sys.exit(2)


def report(path: Path) -> int:
    """Replay one file and print what was found. Returns the exit code."""
    if find_spec("baton_scheduler") is None:
        raise SettingsError("Replaying needs the scheduler: pip install 'baton-serve[scheduler]'.")
    verdict = import_module(_RECORDER).replay(path)
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
    """Run the command."""
    CliApp.run(Replay)


if __name__ == "__main__":
    main()
