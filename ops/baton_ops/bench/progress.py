"""Progress bars of runs with their failed requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from baton_ops.bench.load_generator import Outcome


class ProgressBars:
    """Progress bars, shown within a `with` block."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<16}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[errors]}"),
            console=console,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @contextmanager
    def bar(self, name: str, count: int) -> Iterator[Callable[[Outcome], None]]:
        """Add a bar of `count` requests; yields the callback for each outcome."""
        task = self._progress.add_task(name, total=count, errors="")
        failed = 0

        def done(outcome: Outcome) -> None:
            nonlocal failed
            failed += outcome.error is not None
            errors = f"[red]{failed} failed[/]" if failed else ""
            self._progress.update(task, advance=1, errors=errors)

        yield done
        self._progress.stop_task(task)
