"""The whole gateway on a real socket: slow readers, pipelining, probes."""

from __future__ import annotations

import json
import socket

import httpx
import pytest

from tests.fakes.gateway_app import chat, completion
from tests.fakes.gateway_engine import FakeEngine
from tests.fakes.gateway_socket import post, site
from tests.support.served_system import until


def test_a_client_that_never_reads_is_cut_off() -> None:
    """Z02: what it cannot take waits in bounded buffers, and its work is aborted."""
    with site(slow_client_seconds=0.3) as here:
        here.engine.scheduler.reply = "x" * 500
        many = chat(stream=True, n=32, max_tokens=400, logprobs=True, top_logprobs=5)
        with here.connect(receive_bytes=4096) as client:
            client.sendall(post("/v1/chat/completions", many))
            until(lambda: len(here.engine.scheduler.live) == 32, "it runs")
            until(lambda: not here.engine.scheduler.live, "it is stopped, or done")
            until(lambda: "0 requests" in _me(here.engine), "nothing is left of it")
            with pytest.raises(AssertionError):
                _read_to_done(client)
        assert httpx.post(f"{here.url}/v1/chat/completions", json=chat()).status_code == 200


def _me(engine: FakeEngine) -> str:
    return str(engine.snapshot()["services"][0]["detail"])


def _read_to_done(client: socket.socket) -> None:
    received = b""
    while data := _received(client):
        received += data
    assert b"[DONE]" in received


def _received(client: socket.socket) -> bytes:
    try:
        return client.recv(65536)
    except ConnectionResetError:
        return b""


def test_pipelined_requests_are_answered_in_order_or_not_at_all() -> None:
    """Z03: 500 at once on one connection; the excess is refused, and nobody gets another's."""
    with site() as here, here.connect() as client:
        asked = [completion(prompt=f"<{i}>", echo=True, max_tokens=1) for i in range(500)]
        client.sendall(b"".join(post("/v1/completions", body) for body in asked))
        received = b""
        while data := _received(client):
            received += data
        bodies = [part.split(b"\r\n\r\n", 1)[1] for part in received.split(b"HTTP/1.1 ")[1:]]
        answers = [json.loads(body) for body in bodies]
        texts = [a["choices"][0]["text"] for a in answers if "choices" in a]
        assert texts and texts == [f"<{i}>H" for i in range(len(texts))]
        assert all("error" in a for a in answers[len(texts) :])
        assert httpx.post(f"{here.url}/v1/completions", json=completion()).status_code == 200


def test_probes_are_always_answered() -> None:
    """X10: with a body, by POST, a thousand of them, and whatever the limits are."""
    with site(requests_per_minute=1) as here, httpx.Client(base_url=here.url) as client:
        assert client.post("/v1/completions", json=completion()).status_code == 200
        assert client.post("/v1/completions", json=completion()).status_code == 429
        for path in ("/livez", "/readyz"):
            url = here.url + path
            assert httpx.request("GET", url, content=b"x" * 1000).status_code == 200
            assert httpx.post(url, json={}).status_code == 405
            assert {client.get(path).status_code for _ in range(500)} == {200}
