"""A system whose worker has two ranks."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import httpx

from tests.fakes.whole_system import whole
from tests.support.served_system import PATIENCE, Served

PROMPT = "Once upon a time there was a little girl who loved to run with her friends. " * 2
ASKED = {"prompt": PROMPT, "max_tokens": 200, "temperature": 0, "ignore_eos": True}


def told_by_one_process(model: Path) -> str:
    """The text of a `Story`, without a system of processes."""
    with whole(model) as here:
        answer = here.complete(**ASKED)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["text"]
        return text


class Story(threading.Thread):
    """A long greedy stream in the background, and its text so far."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.started = threading.Event()
        self.text, self.ended, self.last = "", False, "nothing"
        self._url = url
        self.start()

    def run(self) -> None:
        body = ASKED | {"model": "hf", "stream": True}
        url = f"{self._url}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=PATIENCE) as answer:
            for line in answer.iter_lines():
                self.last = line or self.last
                data = line.removeprefix("data: ")
                if data == "[DONE]":
                    self.ended = True
                elif line.startswith("data: "):
                    self.text += json.loads(data)["choices"][0]["text"]
                    self.started.set()

    def whole(self) -> str:
        """The text, once all of it is there."""
        self.join(PATIENCE)
        how = "hangs" if self.is_alive() else "broke off"
        assert self.ended, f"the stream {how}; its last line: {self.last}"
        return self.text


class Served2(Served):
    """A server whose one worker is two processes."""

    def followers(self) -> list[int]:
        """Process ids of the other ranks."""
        worker = self.pids().get("worker")
        listed = Path(f"/proc/{worker}/task/{worker}/children")
        return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []
