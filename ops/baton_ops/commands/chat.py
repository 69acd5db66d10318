"""`baton chat`: a terminal chat with any OpenAI-compatible server.

Type a message; an empty line is ignored, Ctrl-C stops an answer, Ctrl-D ends.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx
from pydantic import Field
from rich.console import Console

from baton.errors import BatonError, SettingsError, Unavailable
from baton.process.lifecycle import fail
from baton.settings import Settings
from baton_ops.server_url import ServerUrl, unavailable


class Chat(Settings, prefix="chat"):
    """Chat with a server in the terminal."""

    url: ServerUrl = "http://127.0.0.1:8000"
    """Where the server listens."""
    system: str = ""
    """System message."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature; empty leaves it to the server."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest answer; empty leaves it to the server."""
    key: str = ""
    """API key, if the server wants one."""


class Conversation:
    """Message history and the server connection."""

    def __init__(self, options: Chat, client: httpx.Client) -> None:
        self._client = client
        self._sampling = {
            name: value
            for name in ("temperature", "max_tokens")
            if (value := getattr(options, name)) is not None
        }
        self.messages: list[dict[str, str]] = []
        if options.system:
            self.messages.append({"role": "system", "content": options.system})
        self.model = self._first_model()

    def _first_model(self) -> str:
        try:
            answer = self._client.get("/v1/models")
        except httpx.HTTPError as error:
            raise unavailable(self._client.base_url, error) from error
        _check(answer)
        models: list[dict[str, str]] = answer.json()["data"]
        if not models:
            raise Unavailable("The server has no model yet: try again in a moment.")
        return models[0]["id"]

    def ask(self, text: str) -> Iterator[str]:
        """Yield the answer to `text` as it arrives. Both are stored, unless no answer has begun."""
        self.messages.append({"role": "user", "content": text})
        body = {"model": self.model, "messages": self.messages, "stream": True, **self._sampling}
        reply: list[str] = []
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
                if answer.status_code != 200:
                    answer.read()
                _check(answer)
                for piece in _pieces(answer.iter_lines()):
                    reply.append(piece)
                    yield piece
        finally:
            if reply:
                self.messages.append({"role": "assistant", "content": "".join(reply)})
            else:
                self.messages.pop()


def _pieces(lines: Iterator[str]) -> Iterator[str]:
    """Yield the text of each server-sent event. Raises `BatonError` for an error event."""
    for line in lines:
        data = line.removeprefix("data: ")
        if data == line or data == "[DONE]":
            continue
        event: dict[str, Any] = json.loads(data)
        if "error" in event:
            raise BatonError(str(event["error"].get("message", "the server gave no reason")))
        for choice in event.get("choices", []):
            yield choice["delta"].get("content") or ""


def _check(answer: httpx.Response) -> None:
    if answer.status_code == 200:
        return
    try:
        reason = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        reason = f"the server answered with status {answer.status_code}"
    raise BatonError(reason)


def _turn(conversation: Conversation, text: str, console: Console) -> None:
    try:
        for piece in conversation.ask(text):
            console.print(piece, end="", markup=False, highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        console.print(" [dim](stopped)[/]", end="")
    except BatonError as error:
        console.print(f"[red]{error.message}[/]", end="")
    console.print()


def talk(options: Chat, console: Console) -> None:
    """Read, send and print messages until the input ends."""
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    timeout = httpx.Timeout(600.0, connect=5.0)
    with httpx.Client(base_url=options.url, headers=headers, timeout=timeout) as client:
        conversation = Conversation(options, client)
        console.print(f"[dim]{conversation.model} at {options.url}; Ctrl-D ends[/]")
        while True:
            try:
                text = console.input("[bold]> [/]").strip()
            except (EOFError, KeyboardInterrupt):
                console.print()
                return
            if text:
                _turn(conversation, text, console)


def main() -> None:
    """Run the command."""
    try:
        talk(Chat.load(sys.argv[1:]), Console())
    except (BatonError, SettingsError) as error:
        fail("baton chat", error)
    except httpx.HTTPError as error:
        sys.exit(f"baton chat: the server does not answer: {error}")


if __name__ == "__main__":
    main()
