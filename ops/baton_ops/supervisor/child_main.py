"""Entry point of child processes: runs one service and exits with the supervisor.

The supervisor holds the other end of standard input. The kernel closes it when the supervisor ends,
even after `kill -9`, and the read below returns. A line from the supervisor activates a spare
(`baton.process.standby`): the command line that the spare stands in for. If standard input is a
socket, the service reports through it that its main loop is alive (`baton.process.watchdog`).

    python -m baton_ops.supervisor.child_main worker
    python -m baton_ops.supervisor.child_main --spare gateway
"""

from __future__ import annotations

import contextlib
import json
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
from baton.settings import environment

_SPARE = "--spare"


def _follow(service: str) -> None:
    leash = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115
    try:
        for line in leash:
            if line.endswith(b"\n"):  # otherwise the supervisor died while it wrote
                _rename(service)
                standby.call(_arguments(service, json.loads(line)))
    except ConnectionResetError:
        pass  # the supervisor left our last report unread
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def _arguments(service: str, command: list[str]) -> list[str]:
    """What follows the service in a command line."""
    return command[command.index(service) + 1 :] if service in command else []


def _tell() -> None:
    """Let the service report liveness through standard input, if it is a socket."""
    line = sys.stdin.fileno()
    if stat.S_ISSOCK(os.fstat(line).st_mode):
        pulse.attach(socket.socket(fileno=os.dup(line)))


def _rename(service: str) -> None:
    """Set the process name shown by `ps` and `top`, where supported."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(f"baton-{service}")


def main() -> None:
    """Watch the supervisor, then run `baton <service>`."""
    spare = _SPARE in sys.argv[1:2]
    if spare:
        del sys.argv[1]
        standby.hold(int(environment().get(standby.REPLACED, 0)))
    service = "".join(sys.argv[1:2])
    _rename("spare" if spare else service)
    _tell()
    threading.Thread(target=_follow, args=(service,), name="leash", daemon=True).start()
    baton()


if __name__ == "__main__":
    main()
