"""Standby processes: fully loaded, idle until the supervisor activates them.

    supervisor                     standby process, on its control socket
      | -- starts --------------->  |   imports, reads, loads; then `wait`
      |    ...                      |   binds no socket, serves no requests
      | -- one line ------------->  |   the active process has died: bind and serve

The line has the arguments of the process that died. A standby that is a fork server
(`baton.process.fork_server`) stands in for any of several workers, which differ in name and role:
in `wait` it forks one that is active, and stays a standby. In a process that is not a standby,
`wait` returns at once.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

REPLACED = "STANDBY_REPLACES_PID"
"""Variable that names the process which a standby is to replace; no setting of an operator."""

Forks: TypeAlias = Callable[[float | None], Sequence[str] | None]
"""Waits for so many seconds, or for ever, and forks. Returns the arguments in a process that is
active, and None in the standby."""

_called = threading.Event()
_called.set()
_arguments: tuple[str, ...] = ()
_replaced = 0
_forks: Forks | None = None
_deferred: list[Callable[[], None]] = []


def hold(replaced: int = 0, forks: Forks | None = None) -> None:
    """Mark this process as a standby: `wait` blocks from now on.

    Args:
        replaced: the active process, whose memory is free by the time this one is called; 0 if
            unknown.
        forks: makes it a fork server, whose one thread calls `wait`.
    """
    global _replaced, _forks
    _replaced, _forks = replaced, forks
    _called.clear()


def held() -> bool:
    """Whether this process is a standby that has not been called."""
    return not _called.is_set()


def forks() -> bool:
    """Whether this process is a standby that forks others, and does not take their place."""
    return held() and _forks is not None


def call(arguments: Sequence[str] = ()) -> None:
    """Activate this process, with the arguments of the one that it stands in for."""
    global _arguments, _forks
    _arguments, _forks = tuple(arguments), None
    _called.set()


def when_active(then: Callable[[], None]) -> None:
    """Call this now or, in a standby, in the `wait` that finds it active. For what a fork does not
    take over from its server, such as threads, and for what only an active process may do."""
    if held():
        _deferred.append(then)
    else:
        then()


def wait(seconds: float | None = None) -> tuple[str, ...]:
    """Block until this process is active, or for so long; returns the arguments given to `call`, ()
    if none. Call it after loading resources that two processes can share, such as files, and before
    acquiring exclusive ones, such as addresses."""
    if _forks is None:
        _called.wait(seconds)
    elif (arguments := _forks(seconds)) is not None:
        call(arguments)
    while _deferred and not held():
        _deferred.pop(0)()
    return _arguments


def inherited_bytes(proc: Path = Path("/proc")) -> int:
    """Memory in bytes that this process will have of the replaced one, leased memory included; 0 in
    a process that is not a standby or no longer one."""
    if not held() or not _replaced:
        return 0
    try:
        status = (proc / f"{_replaced}/status").read_text()
    except OSError:  # It has died: its memory is free already.
        return 0
    return 1024 * sum(
        int(size) for size in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status, re.M)
    )
