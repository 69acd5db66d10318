"""Cause of a process's exit from its exit status: inside (its own fault) or outside (a signal sent
to it).

A request is suspected only after an exit from inside. Signals that a process causes itself (a bad
address, an abort) and error exits are from inside; other signals are sent by an operator, a
supervisor or the host's shutdown. SIGKILL can be both: the kernel sends it when memory is short.
Whether it did is read from the kernel's own counter (`OomKills`).
"""

from __future__ import annotations

import signal
from pathlib import Path

from baton.process.lifecycle import EXIT_FAULT, EXIT_GROUP, EXIT_MODEL, EXIT_SETTINGS

_OWN_SIGNALS = frozenset(
    {
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
        signal.SIGABRT,
        signal.SIGTRAP,
        signal.SIGSYS,
    }
)
_SHELL_BASE = 128
"""An exit code of 128 + n means signal n, as in shells and in our own exits."""


def died_inside(code: int, *, short_of_memory: bool = False) -> bool:
    """True if a process exited by its own fault.

    `code`: as `subprocess` reports it. `short_of_memory`: the kernel has killed a process.
    """
    number = -code if code < 0 else code - _SHELL_BASE
    if number > 0:
        return number in _OWN_SIGNALS or (number == signal.SIGKILL and short_of_memory)
    return code not in (0, EXIT_SETTINGS, EXIT_MODEL, EXIT_GROUP)


def passed_on(code: int) -> int:
    """Exit code of a process that ends because its child ended with `code`: it means the same."""
    if code < 0:
        return _SHELL_BASE - code
    return code if code in (EXIT_SETTINGS, EXIT_MODEL) or code > _SHELL_BASE else EXIT_FAULT


class OomKills:
    """Counts the processes that the kernel kills for lack of memory: those of this control group,
    or of the machine if the group cannot be read."""

    def __init__(self, root: Path = Path("/")) -> None:
        """`root`: of the file system, for tests."""
        self._paths = (_group(root) / "memory.events", root / "proc/vmstat")
        self._last_count = self._count()

    def more(self) -> bool:
        """True if the count has risen since the last call."""
        previous, self._last_count = self._last_count, self._count()
        return self._last_count > previous

    def _count(self) -> int:
        for path in self._paths:
            try:
                lines = path.read_text().splitlines()
            except OSError:
                continue
            for name, _, value in (line.partition(" ") for line in lines):
                if name == "oom_kill":
                    return int(value)
        return 0


def _group(root: Path) -> Path:
    """Folder of this process's control group (version 2)."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    group = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    return root / "sys/fs/cgroup" / group.lstrip("/")
