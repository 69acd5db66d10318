"""Whether a running system answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tests.support.served_system import PATIENCE


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


class Waiting:
    """Whether a process waits: its main thread sleeps, and no thread has run since the last
    call."""

    def __init__(self, pid: int) -> None:
        self._stat, self._last = Path(f"/proc/{pid}/stat"), ""

    def __call__(self) -> bool:
        fields = self._stat.read_text().rpartition(")")[2].split()
        last, self._last = self._last, f"{fields[0]} {fields[11:13]}"
        return self._last == last and fields[0] == "S"


def complete(url: str, **extra: Any) -> httpx.Response:
    body = {"model": "hf", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    return httpx.post(f"{url}/v1/completions", json=body | extra, timeout=PATIENCE)


def works(url: str) -> bool:
    """A request succeeds now."""
    try:
        return complete(url).status_code == 200
    except httpx.TransportError:
        return False
