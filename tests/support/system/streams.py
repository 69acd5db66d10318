"""Streams of a running system."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Semaphore
from typing import Any

import httpx

from tests.support.served_system import PATIENCE


def stream(url: str, **fields: Any) -> Iterator[dict[str, Any]]:
    """The events of a streamed completion."""
    body = {"model": "hf", "stream": True, "temperature": 0, "ignore_eos": True} | fields
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=PATIENCE) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


def frames(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(id, data) of every event."""
    name = ""
    for line in lines:
        if line.startswith("id: "):
            name = line[4:]
        elif line.startswith("data: "):
            yield name, line[6:]


def text_of(events: list[dict[str, Any]]) -> str:
    assert all("error" not in event for event in events), events[-1]
    return "".join(c["text"] for event in events for c in event["choices"])


@contextmanager
def busy(url: str, **fields: Any) -> Iterator[None]:
    """Three clients that ask one thing after another while the body runs, of different lengths, so
    that there is always one that runs."""
    started, over = Semaphore(0), Event()

    def ask(length: int) -> None:
        while not over.is_set():
            events = stream(url, **fields, max_tokens=length)
            first = next(events)
            started.release()
            text_of([first, *events])

    with ThreadPoolExecutor() as pool:
        asking = [pool.submit(ask, length) for length in (400, 310, 230)]
        try:
            assert all(started.acquire(timeout=PATIENCE) for _ in asking), "they run"
            yield
        finally:
            over.set()
        for future in asking:
            future.result()
