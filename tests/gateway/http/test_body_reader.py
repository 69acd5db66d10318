"""A large body costs nobody else anything."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from baton.errors import InvalidRequest, Unavailable
from baton_gateway.config import Config
from baton_gateway.http import body, body_reader
from baton_gateway.http.body_reader import INLINE_BYTES, BodyReader
from tests.fakes import gateway_app, gateway_socket
from tests.fakes.gateway_app import chat, completion, error_of

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def served() -> Iterator[gateway_socket.Site]:
    with gateway_socket.site() as here:
        yield here


def parsed(*bodies: bytes) -> list[Any]:
    """What each body becomes: an object, or the message of its refusal."""

    async def parse() -> list[Any]:
        reader = BodyReader(Config())
        found = await asyncio.gather(*map(reader.parse, bodies), return_exceptions=True)
        await reader.close()
        return [e.message if isinstance(e, InvalidRequest) else e for e in found]

    return asyncio.run(parse())


def test_a_large_body_is_the_object_that_a_small_one_would_be() -> None:
    pad = " " * INLINE_BYTES
    value = {"a": [1, -(2**63), 2**64 - 1, 1.5, None, True, "é\U0001f600"], "b": {"c": 10**80}}
    good = json.dumps(value) + pad
    bad = ['{"a": 1, "a": 2}' + pad, '{"a"' + pad, "[]" + pad, '{"a": "\\ud800"}' + pad]
    found = parsed(*(text.encode() for text in (good, *bad)))
    assert found[0] == value
    for text, message in zip(bad, found[1:], strict=True):
        with pytest.raises(InvalidRequest) as small:
            body.parse(text.strip().encode())
        assert message == small.value.message


def test_values_and_nesting_are_counted_before_anything_is_built() -> None:
    many = b'{"a": [' + b"0," * body.MAX_VALUES + b"0]}"
    deep = b'{"a": ' + b"[" * body.MAX_NESTING + b"]" * body.MAX_NESTING + b"}"
    text = json.dumps({"a": ",[{" * body.MAX_VALUES, "b": '\\"' * 9}).encode()
    found = parsed(many, deep, deep + b" " * INLINE_BYTES, text)
    assert "values" in found[0] and "nested" in found[1] and "nested" in found[2]
    assert found[3]["b"] == '\\"' * 9


def test_an_object_of_many_values_does_not_stop_the_event_loop() -> None:
    data = json.dumps({"a": [{"b": number} for number in range(150_000)]}).encode()

    async def longest_pause() -> float:
        reader = BodyReader(Config())
        await reader.parse(b"{}" + b" " * INLINE_BYTES)  # starts a child
        work, pause = asyncio.create_task(reader.parse(data)), 0.0
        while not work.done():
            begin = time.perf_counter()
            await asyncio.sleep(0)
            pause = max(pause, time.perf_counter() - begin)
        await reader.close()
        return pause

    begin = time.perf_counter()
    body.parse(data)
    assert asyncio.run(longest_pause()) < time.perf_counter() - begin


def test_what_takes_too_long_or_too_much_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = json.dumps({"a": "\\ud83d" * 2_000_000}).encode()
    monkeypatch.setattr(body_reader, "_SECONDS", 0.001)
    (found,) = parsed(data)
    assert isinstance(found, Unavailable) and found.status == 503


def test_unfinished_bodies_share_a_budget() -> None:
    """The third large body is refused, a small one is not; then there is room again."""
    with gateway_app.site(max_unfinished_body_bytes=1_000_000) as here:
        started, go_on = [], asyncio.Event()
        whole = json.dumps(chat(user="x" * 500_000)).encode()

        async def parts() -> Any:
            yield whole[:-1]
            started.append(1)
            await go_on.wait()
            yield whole[-1:]

        async def main() -> tuple[list[httpx.Response], httpx.Response, httpx.Response]:
            def post(content: Any) -> Any:
                return here.client.post(CHAT, content=content, headers=JSON)

            slow = [asyncio.create_task(post(parts())) for _ in range(2)]
            while len(started) < 2:
                await asyncio.sleep(0.001)
            refused, small = await post(whole), await here.client.post(CHAT, json=chat())
            go_on.set()
            return await asyncio.gather(*slow), refused, small

        finished, refused, small = here.run(main)
        assert small.status_code == 200
        assert (refused.status_code, error_of(refused)["code"]) == (503, "server_is_overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        assert {r.status_code for r in finished} == {400}  # `user` is too long: all of it was read
        assert here.app.state.bodies._unfinished == 0


def test_a_client_that_leaves_in_the_middle_is_a_499(
    served: gateway_socket.Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with served.connect() as client:
        client.sendall(gateway_socket.post(CHAT, chat())[:-5])
        time.sleep(0.2)
    deadline = time.monotonic() + 60
    while 'status="499"' not in httpx.get(f"{served.url}/metrics").text:
        assert time.monotonic() < deadline
    told = [r for r in caplog.records if r.name.startswith("baton_gateway.http")]
    assert [(r.levelname, r.exc_info) for r in told] == [("INFO", None)]
    assert len(told[0].getMessage()) < 80


def test_an_early_refusal_says_that_it_closes(served: gateway_socket.Site) -> None:
    with served.connect() as client:
        head = gateway_socket.post(CHAT, {}).replace(b"Length: 2", b"Length: 9999")
        client.sendall(head.replace(b"application/json", b"text/plain")[:-2])
        answer = b""
        while part := client.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 415 ") and b"\r\nconnection: close\r\n" in answer


@pytest.mark.parametrize(
    ("path", "asked"),
    [(CHAT, chat(n=0)), (CHAT, chat(zork=1, messages=[])), (TEXT, completion())],
)
def test_refused_bodies_are_freed_at_once(
    served: gateway_socket.Site, path: str, asked: dict[str, Any]
) -> None:
    """No reference cycle keeps them until the collector comes by."""
    large = asked | ({"prompt": "x " * 500_000} if path == TEXT else {"user": "x" * 1_000_000})

    data = gateway_socket.post(path, large, "Connection: close")

    def refused(number: int) -> None:
        for _ in range(number):
            with served.connect() as client:
                client.sendall(data)
                assert client.recv(100).startswith(b"HTTP/1.1 400 ")
                while client.recv(65536):
                    pass

    refused(2)
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        worker = threading.Thread(target=refused, args=(12,))
        worker.start()
        worker.join()
        assert tracemalloc.get_traced_memory()[0] - before < 4_000_000
    finally:
        tracemalloc.stop()
        gc.enable()
