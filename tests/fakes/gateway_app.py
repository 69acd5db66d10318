"""A gateway in this process: the application over the fake engine, called without a socket."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from baton_gateway.app import create_app
from baton_gateway.config import Config
from tests.fakes.gateway_engine import MODEL, FakeEngine

KEYS = ("message", "type", "param", "code")


class Site:
    """Synchronous access to one application. `engine` can be told to misbehave."""

    def __init__(self, **settings: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="baton-")
        folder = Path(self._folder.name)
        paths = {"store_path": folder / "store", "batch_path": folder / "batches"}
        self.config = Config(**paths | settings)
        self.engine = FakeEngine(self.config)
        self.app = create_app(self.config, self.engine)
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()

    def run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a coroutine in the application's event loop."""
        return self._runner.run(work())

    def open(self) -> None:
        async def enter() -> None:
            await self._stack.enter_async_context(self.app.router.lifespan_context(self.app))
            transport = httpx.ASGITransport(self.app)
            client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
            self.client = await self._stack.enter_async_context(client)

        self.run(enter)

    def close(self) -> None:
        self.run(self._stack.aclose)
        self._runner.close()
        self._folder.cleanup()

    def request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            return await self.client.request(method, path, **kwargs)

        response: httpx.Response = self.run(send)
        assert response.headers["x-request-id"].startswith("req_")
        return response

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        return self.request("GET", path, **kwargs)

    def post(self, path: str, body: Any = None, **kwargs: Any) -> httpx.Response:
        return self.request("POST", path, **({} if body is None else {"json": body}), **kwargs)

    def chat(self, **fields: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", chat(**fields))

    def complete(self, **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", completion(**fields))


@contextmanager
def site(**settings: Any) -> Iterator[Site]:
    """An open `BuildContext`."""
    here = Site(**settings)
    here.open()
    try:
        yield here
    finally:
        here.close()


def speaking(own_site: Site, reply: str, **tokenizer: Any) -> None:
    """The model says `reply`; its tokenizer names these formats."""
    own_site.engine.scheduler.reply = reply
    for name, value in tokenizer.items():
        setattr(own_site.engine.tokenizer, name, value)
    own_site.engine.tokenizer.restart()

    async def met() -> None:
        wanted = own_site.engine.tokenizer.hello().tokenizer
        async with asyncio.timeout(60):
            while own_site.engine.tokenizers.infos != [wanted]:
                await asyncio.sleep(0.01)

    own_site.run(met)


def chat(**fields: Any) -> dict[str, Any]:
    """A good chat request with some fields replaced; `...` takes one away."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    return {k: v for k, v in (body | fields).items() if v is not ...}


def completion(**fields: Any) -> dict[str, Any]:
    """A good completion request with some fields replaced; `...` takes one away."""
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 4}
    return {k: v for k, v in (body | fields).items() if v is not ...}


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error of a response, whose shape is checked."""
    body = response.json()
    assert set(body) == {"error"} and tuple(body["error"]) == KEYS
    error: dict[str, Any] = body["error"]
    assert isinstance(error["message"], str) and len(error["message"]) < 1000
    assert error["code"] is None or isinstance(error["code"], str)
    return error


def events_of(text: str) -> list[Any]:
    """Payloads of an event stream; `[DONE]` and errors included."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]
