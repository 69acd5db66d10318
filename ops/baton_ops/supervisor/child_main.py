"""Entry point of child processes: runs one service and exits with the supervisor.

The supervisor has the other end of standard input. The kernel closes it when the supervisor ends,
even after `kill -9`, and the read below returns. A line from the supervisor activates a spare
(`baton.process.standby`): the command line of the process that it replaces. If standard input is a
socket, the service reports through it that its main loop is alive (`baton.process.watchdog`).

    python -m baton_ops.supervisor.child_main worker
    python -m baton_ops.supervisor.child_main --spare gateway
    python -m baton_ops.supervisor.child_main --fork-server worker

A fork server has one thread (`baton.process.fork_server`), which reads standard input itself.
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
from baton.process.clone import die_with_parent
from baton.process.fork_server import ForkServer
from baton.process.watchdog import pulse
from baton.settings import environment

_SPARE, _FORK_SERVER = "--spare", "--fork-server"


def _follow(service: str) -> None:
    control = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115
    try:
        for line in control:
            if line.endswith(b"\n"):  # Otherwise the supervisor exited while writing.
                arguments = _arguments(service, json.loads(line))
                set_name(_title(service, arguments))
                standby.call(arguments)
    except ConnectionResetError:
        pass  # The supervisor has not read our last report.
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def _arguments(service: str, command: list[str]) -> list[str]:
    """The arguments after the service in a command line."""
    return command[command.index(service) + 1 :] if service in command else []


def _tell() -> None:
    """Let the service report liveness through standard input, if it is a socket."""
    line = sys.stdin.fileno()
    if stat.S_ISSOCK(os.fstat(line).st_mode):
        pulse.attach(socket.socket(fileno=os.dup(line)))


def set_name(service: str) -> None:
    """Set the process name shown by `ps` and `top`, where supported."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(f"baton-{service}")


def _title(service: str, arguments: list[str]) -> str:
    """The name of one of several, or its service."""
    return arguments[arguments.index("--name") + 1] if "--name" in arguments[:-1] else service


def _attach(service: str) -> None:
    """Connect this process to its supervisor by standard input."""
    _tell()
    threading.Thread(target=_follow, args=(service,), name="control", daemon=True).start()


def _hold_forks(service: str, replaced: int) -> None:
    """Make this process a fork server, and a standby until it is a fork."""

    server = ForkServer()

    def forked(seconds: float | None) -> list[str] | None:
        if (command := server.wait(seconds)) is None:
            return None
        arguments = _arguments(service, command)
        set_name(_title(service, arguments))
        _attach(service)
        return arguments

    die_with_parent()
    standby.hold(replaced, forked)


def main() -> None:
    """Watch the supervisor, then run `baton <service>`."""
    kind = "".join({_SPARE, _FORK_SERVER} & set(sys.argv[1:2]))
    if kind:
        del sys.argv[1]
    service, replaced = "".join(sys.argv[1:2]), int(environment().get(standby.REPLACED, 0))
    set_name(kind.lstrip("-") or _title(service, sys.argv[2:]))
    if kind == _FORK_SERVER:
        _hold_forks(service, replaced)
    else:
        if kind == _SPARE:
            standby.hold(replaced)
        _attach(service)
    baton()


if __name__ == "__main__":
    main()
