"""Request middleware: disconnects, unexpected errors, errors after the response has begun."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from baton.protocol import Failed
from tests.fakes.gateway_app import (
    Site,
    chat,
    error_of,
    events_of,
)

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_aborts_the_generation(own_site: Site, stream: bool) -> None:
    """Z01: whether streamed or not, the scheduler hears of it at once."""
    engine = own_site.engine
    engine.scheduler.reply, engine.scheduler.pace = "x" * 400, 0.01
    body = json.dumps(chat(stream=stream, max_tokens=400)).encode()

    async def main() -> None:
        sent: list[Any] = []
        left = asyncio.Event()
        inbox = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if inbox:
                return inbox.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": CHAT,
            "raw_path": CHAT.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        serving = asyncio.create_task(own_site.app(scope, receive, send))
        async with asyncio.timeout(60):
            while not engine.scheduler.live or (stream and len(sent) < 3):
                await asyncio.sleep(0.005)
            left.set()
            await serving
        assert engine.scheduler.aborted == [1] and not engine.scheduler.live
        assert bool(sent) == stream

    own_site.run(main)
    assert own_site.chat(max_tokens=2).status_code == 200
    if not stream:
        assert 'status="499"' in own_site.get("/metrics").text


def test_failure_before_the_first_token_is_a_status(own_site: Site) -> None:
    own_site.engine.scheduler.fail = Failed(0, "server_is_overloaded", "Busy.", 503, 7)
    response = own_site.chat(stream=True)
    assert response.status_code == 503 and response.headers["retry-after"] == "7"
    error = error_of(response)
    assert error["type"] == "service_unavailable_error" and error["code"] == "server_is_overloaded"


def test_failure_after_it_is_an_event(own_site: Site) -> None:
    own_site.engine.scheduler.fail = Failed(0, "bad_logits", "No numbers.")
    own_site.engine.scheduler.fail_after = 2
    response = own_site.chat(stream=True)
    assert response.status_code == 200
    events = events_of(response.text)
    assert events[-1] == {
        "error": {
            "message": "No numbers.",
            "type": "server_error",
            "param": None,
            "code": "bad_logits",
        }
    }
    assert "[DONE]" not in events


def test_quarantine_is_not_to_be_retried(own_site: Site) -> None:
    own_site.engine.scheduler.fail = Failed(0, "request_quarantined", "It stopped two workers.")
    response = own_site.chat()
    assert response.status_code == 500 and response.headers["x-should-retry"] == "false"


def test_nobody_to_serve_is_a_503(own_site: Site) -> None:
    own_site.run(lambda: asyncio.sleep(0.2))
    own_site.engine.scheduler.workers = ()
    own_site.run(lambda: asyncio.sleep(0.3))
    for stream in (True, False):
        response = own_site.chat(stream=stream)
        assert response.status_code == 503 and int(response.headers["retry-after"]) >= 1
        assert error_of(response)["code"] == "no_worker"


def test_unforeseen_error(
    own_site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr("baton_gateway.api.answer.permitted", broken)
    with caplog.at_level(logging.ERROR):
        response = own_site.chat()
    assert response.status_code == 500 and "secret" not in response.text
    error = error_of(response)
    assert (error["type"], error["code"]) == ("server_error", "internal_error")
    assert "/secret/path" in caplog.text
