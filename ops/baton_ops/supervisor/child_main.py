"""Run one service on a leash: it ends with its supervisor, however that ends.

The supervisor holds the other end of this process's standard input. The kernel closes it when the
supervisor is gone, `kill -9` included, and the read below returns. What the supervisor writes is
the call that a spare waits for (`baton.process.standby`). Where the leash is a socket, the service
tells by it that its loop turns (`baton.process.watchdog`).

    python -m baton_ops.supervisor.child_main worker
    python -m baton_ops.supervisor.child_main --spare gateway
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import sys
import threading
from pathlib import Path

from baton.__main__ import main as baton
from baton.process import standby
from baton.process.watchdog import pulse

_SPARE = "--spare"


def _follow(service: str) -> None:
    with contextlib.suppress(ConnectionResetError):  # It had not read our last sign.
        while os.read(sys.stdin.fileno(), 1):
            _rename(service)
            standby.call()
    os.kill(os.getpid(), signal.SIGKILL)


def _tell() -> None:
    """Let the service tell by the leash that it turns, if the leash has two ways."""
    line = sys.stdin.fileno()
    if stat.S_ISSOCK(os.fstat(line).st_mode):
        pulse.attach(socket.socket(fileno=os.dup(line)))


def _rename(service: str) -> None:
    """Tell `ps` and `top` what this process is, where the system lets it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(f"baton-{service}")


def main() -> None:
    """Start to watch, then be `baton <service>`."""
    spare = _SPARE in sys.argv[1:2]
    if spare:
        del sys.argv[1]
        standby.hold()
    service = "".join(sys.argv[1:2])
    _rename("spare" if spare else service)
    _tell()
    threading.Thread(target=_follow, args=(service,), name="leash", daemon=True).start()
    baton()


if __name__ == "__main__":
    main()
