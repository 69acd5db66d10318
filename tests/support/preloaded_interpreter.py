"""An interpreter that has imported what services import, and forks the processes of tests.

    tests                                 preloaded interpreter, one thread
      | -- starts --------------------->  |   imports
      | -- a command, a socket -------->  |   forks
      | <- process id, on that socket --  +--> the new process, a child of the tests: runs it

A fork runs the same module, with the same arguments and environment and in the same folder, as a
process that is started alone. Only its imports are done: they are two thirds of the processor time
of the start of a whole system.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

from baton.process import nvidia
from baton.process.clone import set_command_line
from baton.process.fork_server import ForkServer
from baton_ops.supervisor.processes.child_process import ChildProcess
from baton_ops.supervisor.processes.forked_process import ForkedProcess, ForkRequest

FORKS = sys.platform == "linux" and nvidia.count() == 0
"""Whether this machine forks them. What has looked for GPUs while it was imported cannot use them
in a fork."""
_MODULES = (
    "baton_gateway.app",
    "baton_gateway.http.protocol",
    "baton_gateway.http.websocket.protocol",
    "baton_mm_preprocess.service",
    "baton_ops.supervisor.startup",
    "baton_ops.supervisor.worker_pool",
    "baton_scheduler.service",
    "baton_tokenizer.service",
    "baton_worker.service",
    "uvloop",
)
"""What the entry points of services import. They themselves are not imported: they run."""
_LONGEST = 4096
"""Bytes of the longest command line that `ps` can show of a forked process."""
_FORK_SECONDS = 120.0
"""Time limit of a fork, including the imports the first time."""


class Alone(subprocess.Popen[bytes]):
    """A process that has started its own interpreter."""

    def close(self) -> None:
        """Reap the process."""
        self.wait()


def start_alone(
    command: Sequence[str], variables: Mapping[str, str], folder: Path, outputs: Sequence[Path]
) -> Alone:
    """As `PreloadedInterpreter.start`, without a fork."""
    with outputs[0].open("w") as out, outputs[1].open("w") as err:
        return Alone(command, env=variables, cwd=folder, stdout=out, stderr=err)


class PreloadedInterpreter:
    """Life cycle: `start` often, `close`."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", __name__, "-" * _LONGEST]
        ours = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = ChildProcess(command, os.environ | ours)

    def start(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        folder: Path | None = None,
        outputs: Sequence[Path] = (),
    ) -> ForkedProcess:
        """Run `python -m MODULE ...` in a fork. `outputs`: files for standard output and standard
        error, if they are not those of this process."""
        assert tuple(command[:2]) == (sys.executable, "-m"), command
        asked = {
            "command": list(command[2:]),
            "variables": dict(variables),
            "folder": str(folder or Path.cwd()),
            "outputs": [str(path) for path in outputs],
        }
        request = ForkRequest(self._process, [json.dumps(asked)])
        process = request.wait(_FORK_SECONDS)
        assert process is not None, "the interpreter does not fork"
        return process

    def close(self) -> None:
        """End it. What it has forked goes on."""
        self._process.kill()
        self._process.close()


@cache
def preloaded_interpreter() -> PreloadedInterpreter:
    """The one of this process."""
    interpreter = PreloadedInterpreter()
    atexit.register(interpreter.close)
    return interpreter


def main() -> None:
    """Import, and fork for every request."""
    gc.disable()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # A process with two threads cannot be forked.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # As in `baton_worker.__main__`.
    for name in _MODULES:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    for request in ForkServer().wait() or ():
        _run(**json.loads(request))


def _run(
    command: Sequence[str], variables: Mapping[str, str], folder: str, outputs: Sequence[str]
) -> None:
    """Be `python -m COMMAND`."""
    for number, path in enumerate(outputs, 1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ |= variables
    set_command_line(["python", "-m", *command])
    module, *sys.argv[1:] = command
    sys.modules.pop(f"{module}.__main__", None)
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    _exit(code)


def _exit(code: object) -> NoReturn:
    """End as the interpreter does, but for the modules, which take it a fifth of a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
