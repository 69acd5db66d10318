"""Standby processes: loaded and idle until the supervisor activates them.

    supervisor                     standby process, on its control socket
      | -- starts --------------->  |   imports, reads, loads; then `wait`
      |    ...                      |   binds no socket, serves no requests
      | -- one line ------------->  |   the active process has exited: bind and serve

The line contains the arguments of the process that exited. A standby that is a fork server
(`baton.process.fork_server`) replaces any of several workers, which differ in name and role: `wait`
forks an active process, and the standby remains. In a process that is not a standby, `wait` returns
at once.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

REPLACED = "STANDBY_REPLACES_PID"
"""Variable with the id of the process that a standby replaces; not a setting of operators."""

Forks: TypeAlias = Callable[[float | None], Sequence[str] | None]
"""Waits for some seconds, or without limit, and forks. Returns the arguments in an active process,
and None in the standby."""

_called = threading.Event()
_called.set()
_arguments: tuple[str, ...] = ()
_replaced = 0
_forks: Forks | None = None
_deferred: list[Callable[[], None]] = []


def hold(replaced: int = 0, forks: Forks | None = None) -> None:
    """Mark this process as a standby: `wait` blocks from now on.

    Args:
        replaced: the active process, which has exited and freed its memory when this one is
            activated; 0 if unknown.
        forks: makes it a fork server, whose one thread calls `wait`.
    """
    global _replaced, _forks
    _replaced, _forks = replaced, forks
    _called.clear()


def held() -> bool:
    """Whether this process is a standby that is not active yet."""
    return not _called.is_set()


def forks() -> bool:
    """Whether this process is a standby that forks others instead of becoming active."""
    return held() and _forks is not None


def call(arguments: Sequence[str] = ()) -> None:
    """Activate this process with the arguments of the one that it replaces."""
    global _arguments, _forks
    _arguments, _forks = tuple(arguments), None
    _called.set()


def when_active(callback: Callable[[], None]) -> None:
    """Call this now or, in a standby, when `wait` activates it. For things that a fork does not
    inherit, such as threads, and for things that only an active process may do."""
    if held():
        _deferred.append(callback)
    else:
        callback()


def wait(seconds: float | None = None) -> tuple[str, ...]:
    """Block until this process is active, or for some time. Returns the arguments given to `call`,
    () if none. Call it after loading resources that two processes can share, such as files, and
    before acquiring exclusive ones, such as addresses."""
    if _forks is None:
        _called.wait(seconds)
    elif (arguments := _forks(seconds)) is not None:
        call(arguments)
    while _deferred and not held():
        _deferred.pop(0)()
    return _arguments


def inherited_bytes(proc: Path = Path("/proc")) -> int:
    """Bytes of memory that the replaced process will free for this one, including leased memory; 0
    if this process is not a standby, or active."""
    if not held() or not _replaced:
        return 0
    try:
        status = (proc / f"{_replaced}/status").read_text()
    except OSError:  # It has exited: its memory is free already.
        return 0
    return 1024 * sum(
        int(size) for size in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status, re.M)
    )
