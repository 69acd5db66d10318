"""Linux system calls for processes that Python does not offer."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_GET_TID_ADDRESS = 1, 40
_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
_FLAGS = _CLONE_PARENT | _CLONE_CHILD_CLEARTID | _CLONE_CHILD_SETTID | signal.SIGCHLD
_ARGUMENTS = 48, 49
"""Fields of proc_pid_stat(5): start and end of the command line in memory."""
_CLONE = {"x86_64": (56, 3), "aarch64": (220, 4)}
"""Number of clone(2) by machine, and the position of its argument `child_tid`."""


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent exits, if the system supports it. A fork of
    this process does not inherit this."""
    with contextlib.suppress(AttributeError):  # Not Linux.
        _libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def fork_sibling() -> int:
    """Fork as `os.fork` does, but as a child of this process's parent, which gets the exit status
    and may wait for it. Returns 0 in the new process and its process id in this one.

    For a process with one thread: handlers of pthread_atfork(3) are not called.

    Raises:
        OSError: the system, or this process, does not allow it.
    """
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise OSError(f"the process has {threads} threads")
    libc, (number, arguments) = _libc(), _call()
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid = int(libc.syscall(number, *arguments))
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    code = ctypes.get_errno()
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(code, os.strerror(code))
    return pid


def set_command_line(words: Sequence[str], proc: Path = Path("/proc/self")) -> None:
    """Set the command line that `ps` shows, truncated to the length of the original one. Does
    nothing if the system does not report its position."""
    with contextlib.suppress(OSError, IndexError):
        fields = (proc / "stat").read_text().rpartition(") ")[2].split()
        start, end = (int(fields[number - 3]) for number in _ARGUMENTS)
        text = "\0".join(words).encode()[: max(0, end - start - 1)]
        if start:
            ctypes.memset(start, 0, end - start)
            ctypes.memmove(start, text, len(text))


def _call() -> tuple[int, list[ctypes.c_long]]:
    """Number and arguments of the system call."""
    if platform.machine() not in _CLONE or platform.system() != "Linux":
        raise OSError(f"{platform.system()} on {platform.machine()} is not known here")
    number, place = _CLONE[platform.machine()]
    arguments = [ctypes.c_long(_FLAGS), *(ctypes.c_long(0) for _ in range(4))]
    # The C library stores the id of each thread, and lets the kernel set it as fork(3) does.
    arguments[place] = ctypes.c_long(_tid_address())
    return number, arguments


def _tid_address() -> int:
    address = ctypes.c_void_p()
    if _libc().prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return address.value or 0


def _libc() -> ctypes.PyDLL:
    """The C library, called without giving up the interpreter's lock."""
    libc = ctypes.PyDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc
