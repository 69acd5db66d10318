"""Detects whether AMX tiles work on this machine, and requests the permission to use them."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from pathlib import Path

from baton_worker.kernels.cpu.build import openmp_runtime

_TIMEOUT_SECONDS = 20
_TRIAL = """
import ctypes, sys
*needed, kernels = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in sys.argv[1:]]
for name, wrong in (("permitted", "the system gives no leave"), ("are_right", "sums are wrong")):
    function = getattr(kernels, "baton_tiles_" + name)
    function.restype = ctypes.c_bool
    if not function():
        sys.exit(wrong)
"""


def refuses(kernels: Path) -> str | None:
    """Why AMX tiles cannot be used, as half a sentence; None if this process may use them from now
    on. A child process tries them first, since the system may kill it."""
    return _trial(kernels) or _permission(kernels)


def _trial(kernels: Path) -> str | None:
    runtime = openmp_runtime()
    paths = [str(path) for path in (runtime, kernels) if path is not None]
    command = [sys.executable, "-I", "-S", "-c", _TRIAL, *paths]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"a product took longer than {_TIMEOUT_SECONDS} seconds"
    if done.returncode < 0:
        return f"the system ended a product by {signal.Signals(-done.returncode).name}"
    last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
    return last[0] if done.returncode else None


def _permission(kernels: Path) -> str | None:
    permitted = ctypes.CDLL(str(kernels)).baton_tiles_permitted
    permitted.restype = ctypes.c_bool
    return None if permitted() else "the system gives this process no leave"
