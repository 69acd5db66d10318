"""A small OpenAI-compatible server for tests of clients: exact token counts, no model."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse


class Completions:
    """Streams `max_tokens` pieces per answer. One word is two tokens, a prompt has three more.

    `takes_ids` and `tokenizes` say what kind of server it plays; `broken` is what happens to the
    requests whose number (from 0) is in `breaks`: "refuse", "error", "cut", "silent", "empty", or
    "special" for tokens without text.
    No answer begins before `together` have been open at once.
    """

    def __init__(self) -> None:
        self.takes_ids = True
        self.tokenizes = True
        self.broken = "refuse"
        self.breaks: set[int] = set()
        self.asked: list[dict[str, Any]] = []
        self.together = 1
        self.running = self.most_running = 0
        self.app = FastAPI()
        self.app.get("/v1/models")(self.models)
        self.app.get("/health/ready")(self.models)
        self.app.post("/tokenize", response_model=None)(self.tokenize)
        self.app.post("/v1/completions", response_model=None)(self.complete)
        self.app.post("/v1/chat/completions", response_model=None)(self.complete)

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "fake", "object": "model"}]}

    async def tokenize(self, request: Request) -> JSONResponse:
        if not self.tokenizes:
            return JSONResponse({"detail": "Not Found"}, status_code=404)
        words = (await request.json())["prompt"].split()
        return JSONResponse({"tokens": [10 + len(word) for word in words], "count": len(words)})

    async def complete(self, request: Request) -> JSONResponse | StreamingResponse:
        body = await request.json()
        number = len(self.asked)
        self.asked.append(body)
        prompt = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
        fault = self.broken if number in self.breaks else ""
        if fault == "refuse" or (isinstance(prompt, list) and not self.takes_ids):
            error = {"message": "No.", "type": "x", "param": None, "code": None}
            return JSONResponse({"error": error}, status_code=400)
        count = len(prompt) if isinstance(prompt, list) else 2 * len(prompt.split()) + 3
        stream = self._stream(count, body["max_tokens"], fault, "prompt" not in body)
        return StreamingResponse(stream, media_type="text/event-stream")

    async def _stream(
        self, prompt_tokens: int, tokens: int, fault: str, chat: bool
    ) -> AsyncIterator[str]:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            while self.most_running < self.together:
                await asyncio.sleep(0.001)
            for _ in range(0 if fault in ("empty", "special") else tokens):
                await asyncio.sleep(3600 if fault == "silent" else 0)
                piece = {"delta": {"content": "a"}} if chat else {"text": "a"}
                yield _event({"choices": [{**piece, "finish_reason": None}]})
                if fault == "cut":
                    return
                if fault == "error":
                    yield _event({"error": {"message": "The worker was lost.", "code": None}})
                    return
            end = {"delta": {}} if chat else {"text": ""}
            yield _event({"choices": [{**end, "finish_reason": "length"}]})
            made = 0 if fault == "empty" else tokens
            usage = {"prompt_tokens": prompt_tokens, "completion_tokens": made}
            yield _event({"choices": [], "usage": usage})
            yield "data: [DONE]\n\n"
        finally:
            self.running -= 1


def _event(data: object) -> str:
    return f"data: {json.dumps(data)}\n\n"


class Site:
    """A FastAPI app on a free port of this machine, in a thread, as a context manager."""

    def __init__(self, app: FastAPI) -> None:
        config = uvicorn.Config(
            app, port=0, lifespan="off", log_config=None, ws="none", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self.url = ""

    def __enter__(self) -> Site:
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.01)
        sockets: list[socket.socket] = list(self._server.servers[0].sockets)
        self.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *ignored: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()
