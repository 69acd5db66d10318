"""Streams of a running system."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
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
