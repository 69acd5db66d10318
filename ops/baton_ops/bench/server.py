"""Runs a server for the duration of a benchmark."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from baton.errors import Unavailable
from baton.settings import environment

_POLL_SECONDS = 0.2
_STOP_SECONDS = 40.0
_TAIL_LINES = 15


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


_NO_FORK_SERVER = "--no-fork-workers"
"""Measured servers that load and serve in the same process."""


@contextmanager
def served(model: str, arguments: Sequence[str], log: Path, start_seconds: float) -> Iterator[str]:
    """Run `baton serve MODEL` and yield its URL once it is ready. Its output goes to `log`.

    Raises `Unavailable` with the end of the output when it exits or is not ready in time.
    """

    def command(port: int) -> list[str]:
        serve = [sys.executable, "-m", "baton", "serve", model, "--port", str(port)]
        return [*serve, _NO_FORK_SERVER, *arguments]

    with running(command, "/health/ready", {}, log, start_seconds) as url:
        yield url


@contextmanager
def running(
    command: Callable[[int], list[str]],
    ready: str,
    variables: Mapping[str, str],
    log: Path,
    start_seconds: float,
) -> Iterator[str]:
    """Run a server on a free port and yield its URL once the path `ready` returns 200.

    Raises `Unavailable` with the end of the output when it exits or is not ready in time.
    """
    port = free_port()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command(port),
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment(), **variables},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _await(process, url + ready, log, start_seconds)
        yield url
    finally:
        _stop(process)


def _await(process: subprocess.Popen[bytes], url: str, log: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not _ready(url):
        if process.poll() is not None:
            raise Unavailable(f"The server stopped with code {process.returncode}.{_tail(log)}")
        if time.monotonic() > end:
            raise Unavailable(f"The server was not ready after {seconds:.0f} s.{_tail(log)}")
        time.sleep(_POLL_SECONDS)


def _ready(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0).status_code == 200
    except httpx.HTTPError:
        return False


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n".join([f" The end of {log}:", *lines])


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
