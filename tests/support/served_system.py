"""One `baton serve` as a user runs it, and what can be seen of it from outside."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.support.preloaded_interpreter import FORKS, preloaded_interpreter, start_alone

PATIENCE = 120.0
"""Seconds for anything that must happen; a bound on a failure, not a measurement."""


def _name(process: str, command: list[str]) -> str | None:
    """Its service or the name of one of several; None for a standby that has not been called."""
    kind = {"--spare", "--fork-server"} & set(command)
    if kind:  # The command line is that of the standby.
        _, ours, title = Path(f"/proc/{process}/comm").read_text().strip().partition("baton-")
        waits = not ours or any(flag.startswith(f"--{title}") for flag in kind)
        return None if waits else title
    if "--name" in command:
        return command[command.index("--name") + 1]
    return command[1]


class Served:
    """Five real processes under their supervisor, on a port of their own; without spares, unless
    a flag asks for them: most tests end before one would be there. Unless they start `alone`, they
    are forked from an interpreter that has their imports."""

    def __init__(
        self, folder: Path, model: str | Path | None, *flags: str, alone: bool = False
    ) -> None:
        self.log, self._output = folder / "log", folder / "output"
        spares = () if "--spares" in flags else ("--no-spares",)
        command = [sys.executable, "-m", "baton", "serve", "--port", "0", *spares, *flags]
        if model is not None:
            command.insert(4, str(model))
        for file in (files := (self._output, self.log)):
            file.touch()
        start = preloaded_interpreter().start if FORKS and not alone else start_alone
        self.process = start(command, os.environ, folder, files)
        self.banner = ""
        self.url = ""

    def ready(self) -> Served:
        """Wait for the banner."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < deadline:
            self.banner = self._output.read_text()
            if re.search(r"^  -d.*\n", self.banner, re.MULTILINE):
                break
            time.sleep(0.05)
        found = re.search(r"http://127\.0\.0\.1:\d+", self.banner)
        if not found:
            self.close()
            raise AssertionError(self.log.read_text())
        self.url = found[0]
        return self

    def pids(self) -> dict[str, int]:
        """Name, which is the service or that of one of several workers, to process id."""
        number = self.process.pid
        children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        found = {}
        for child in children:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                command = Path(f"/proc/{child}/cmdline").read_text().rstrip("\0").split("\0")
                if "baton_ops.supervisor.child_main" in command:  # It was not forked.
                    command[:] = ["baton", *command[3:]]
                ours = command[0] == "baton" and command[1:] not in ([], ["--preloaded"])
                if ours and (name := _name(child, command)) is not None:
                    found[name] = int(child)
        return found

    def complete(self, **fields: Any) -> httpx.Response:
        """POST /v1/completions."""
        body = {"model": self.fleet()["model"], "max_tokens": 8, "temperature": 0} | fields
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=PATIENCE)

    def fleet(self) -> dict[str, Any]:
        """The live view that the page shows."""
        found: dict[str, Any] = httpx.get(f"{self.url}/fleet", timeout=PATIENCE).json()
        return found

    def reports(self, **figures: int) -> None:
        """Wait until the live view shows these figures: workers report them several times a
        second, so an answer comes before its figures."""
        until(lambda: self.fleet().items() >= figures.items(), f"the fleet reports {figures}")

    def pages_held(self) -> int:
        """KV pages in use on all workers."""
        return sum(w["pages_total"] - w["pages_free"] for w in self.fleet()["workers"])

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.close()


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that must happen."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what}: this did not happen"
        time.sleep(0.05)
