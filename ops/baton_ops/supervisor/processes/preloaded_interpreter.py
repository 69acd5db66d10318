"""An interpreter that has imported the common modules of services, and forks each of them.

    supervisor                           preloaded interpreter, one thread
      | -- forks, before all else ----->  |   imports
      | -- command line, a socket ----->  |   forks
      | <- process id, on that socket --  +--> the new process, a child of the supervisor: runs
                                               `baton_ops.supervisor.child_main`

Such a process equals one of `ChildProcess`, except for its imports: environment, standard input and
entry point are the same. If the interpreter cannot fork or has exited, a process starts its own
interpreter.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TypeAlias

from baton.logs import logger
from baton.process.clone import die_with_parent, set_command_line
from baton.process.fork_server import ForkServer
from baton.settings import change_environment, config_classes, environment
from baton_ops.supervisor.child_main import main as child_main
from baton_ops.supervisor.child_main import set_name
from baton_ops.supervisor.processes.child_process import CHILD_MAIN, ChildProcess
from baton_ops.supervisor.processes.forked_process import ForkedProcess, ForkRequest

Process: TypeAlias = ChildProcess | ForkedProcess
Start: TypeAlias = Callable[[Sequence[str], Mapping[str, str]], Process]
"""Starts a process with a command line and an environment."""

_MODULES = ("baton.process.lifecycle", "baton.process.rpc_server", "numpy")
"""Modules of several services, besides their settings. None of them starts a thread."""
_FORK_SECONDS = 10.0
"""Time limit of a fork, including the interpreter's imports the first time."""
_THREADS = "OPENBLAS_NUM_THREADS"

log = logger(__name__)


class PreloadedInterpreter:
    """Life cycle: `fork` once, `start` often, `close`."""

    def __init__(self, process: ForkedProcess) -> None:
        self._process: ForkedProcess | None = process

    @classmethod
    def fork(cls) -> PreloadedInterpreter:
        """Fork this process, which has one thread and has opened nothing yet. Returns once for the
        caller; every process that is forked later leaves by `SystemExit`."""
        ours, remote = socket.socketpair()
        if pid := os.fork():
            remote.close()
            ours.setblocking(False)
            return cls(ForkedProcess(pid, ours))
        ours.close()
        _become(remote)
        raise AssertionError("a service ends its process")

    def start(self, command: Sequence[str], variables: Mapping[str, str]) -> Process:
        """Start a process of `CHILD_MAIN` in a process group of its own."""
        is_child = tuple(command[: len(CHILD_MAIN)]) == CHILD_MAIN
        forked = self._forked(command[len(CHILD_MAIN) :], variables) if is_child else None
        return forked or ChildProcess(command, variables)

    def _forked(self, arguments: Sequence[str], variables: Mapping[str, str]) -> Process | None:
        """The new process; None if there will be none."""
        if self._process is None:
            return None
        request = ForkRequest(self._process, [json.dumps(_changes(variables)), *arguments])
        process = request.wait(_FORK_SECONDS)
        if process is None:
            log.warning("services are started without what they share: it cannot be forked")
            request.close()
            self.close()
        elif process.pid == self._process.pid:  # It could not fork, and has become the service.
            self._process.hand_over()
            self._process = None
        return process

    def close(self) -> None:
        """Stop the interpreter. Forked processes continue."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.close()


def _changes(variables: Mapping[str, str]) -> dict[str, str | None]:
    """Changes from this process's environment to another one; None for removed variables."""
    current = environment()
    changed: dict[str, str | None] = {n: v for n, v in variables.items() if current.get(n) != v}
    return changed | dict.fromkeys(current.keys() - variables.keys())


def _become(control: socket.socket) -> None:
    """Make this process a preloaded interpreter, and each process that it forks a service."""
    os.setpgid(0, 0)  # Ctrl-C reaches the supervisor only.
    os.dup2(control.fileno(), 0)
    control.close()
    die_with_parent()
    set_name("preloaded")
    set_command_line(["baton", "--preloaded"])
    _import()
    changes, *arguments = ForkServer().wait() or ("{}",)
    set_command_line(["baton", *arguments])
    change_environment(json.loads(changes))
    sys.argv = [CHILD_MAIN[-1], *arguments]
    child_main()
    sys.exit()


def _import() -> None:
    """Import the common modules, so that garbage collection never traverses them."""
    gc.disable()
    config_classes()
    threads = environment().get(_THREADS)
    change_environment({_THREADS: "1"})  # A process with a second thread cannot be forked.
    for name in _MODULES:
        if find_spec(name) is not None:
            importlib.import_module(name)
    change_environment({_THREADS: threads})
    gc.freeze()
    gc.enable()
