"""`baton serve` as a user runs it: five real processes, killed, drained and restarted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from baton.settings import SERVICES
from tests.support.served_system import PATIENCE, Served, until
from tests.support.system.running_system import (
    alive,
    works,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the process table in /proc"),
]
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"


def serve(folder: Path, model: Path, *flags: str) -> Served:
    """A server whose model gets a chat template, on one thread."""
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    more = ("--tokenizer.chat-template", str(template), "--worker.threads", "1", "--spares", *flags)
    return Served(folder, model, *more)


class Stream(threading.Thread):
    """A long streaming request in the background, and how it ended."""

    def __init__(self, url: str, max_tokens: int = 400) -> None:
        super().__init__(daemon=True)
        self.started = threading.Event()
        self.events: list[str] = []
        self.longest_pause = 0.0
        """Seconds between two events."""
        self.broken: httpx.TransportError | None = None
        self._url, self._max_tokens = url, max_tokens
        self.start()

    def run(self) -> None:
        body = {
            "model": "hf",
            "prompt": "Once upon a time",
            "max_tokens": self._max_tokens,
            "ignore_eos": True,
            "seed": 5,
            "stream": True,
        }
        try:
            with httpx.stream(
                "POST", f"{self._url}/v1/completions", json=body, timeout=PATIENCE
            ) as answer:
                last = time.monotonic()
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        now = time.monotonic()
                        self.longest_pause = max(self.longest_pause, now - last)
                        last = now
                        self.events.append(line.removeprefix("data: "))
                        self.started.set()
        except httpx.TransportError as error:
            self.broken = error
        self.started.set()

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(json.loads(e)["choices"][0]["text"] for e in self.events if e != "[DONE]")

    @property
    def ended_cleanly(self) -> bool:
        """With [DONE] after all tokens, or with one error event as the last."""
        if not self.events:
            return False
        return self.events[-1] == "[DONE]" or "error" in json.loads(self.events[-1])


@pytest.fixture(scope="module")
def served(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = serve(tmp_path_factory.mktemp("served"), stories, "--stopped-worker-seconds", "2")
    try:
        yield server.ready()
    finally:
        server.close()


def test_the_banner_and_a_chat(served: Served) -> None:
    assert "curl" in served.banner and "memory" in served.banner and "cpu" in served.banner
    assert set(served.pids()) == set(SERVICES)
    body = {
        "model": "hf",
        "messages": [{"role": "user", "content": "Once upon a time"}],
        "max_tokens": 16,
    }
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("service", SERVICES)
def test_a_killed_service_is_restarted_and_nothing_hangs(served: Served, service: str) -> None:
    until(lambda: works(served.url), "the system works before")
    before = served.pids()
    stream = Stream(served.url)
    assert stream.started.wait(PATIENCE)
    os.kill(before[service], signal.SIGKILL)
    stream.join(PATIENCE)
    assert not stream.is_alive(), "the request in flight hangs"
    if service == "gateway":
        assert stream.broken is not None or stream.ended_cleanly
    else:
        assert stream.broken is None and stream.ended_cleanly, stream.events[-1:]
    until(lambda: works(served.url), "the system works again")
    until(lambda: served.pids().keys() == before.keys(), "everybody is there")
    after = served.pids()
    assert after[service] != before[service]
    assert {s: p for s, p in after.items() if s != service} == {
        s: p for s, p in before.items() if s != service
    }
    lines = [x for x in served.log.read_text().splitlines() if f"{service}[{before[service]}]" in x]
    reports = [x for x in lines if "was killed by SIGKILL: restarting" in x]
    assert len(reports) == 1


@pytest.mark.parametrize("then", [signal.SIGKILL, signal.SIGSTOP])
def test_the_next_worker_is_forked_and_goes_on_with_the_stream_of_the_killed_one(
    served: Served, then: signal.Signals
) -> None:
    """And the next one after that, with no time in between for anything to load. A worker that is
    stopped is killed too, since no other one has its streams."""
    undisturbed = Stream(served.url)
    undisturbed.join(PATIENCE)
    waits = re.compile(r"worker\[(\d+)\] - loaded; waiting to fork")
    until(lambda: bool(waits.search(served.log.read_text())), "there is one to fork from")
    (server,) = waits.findall(served.log.read_text())
    stream, killed = Stream(served.url), list[int]()
    assert stream.started.wait(PATIENCE)
    for number in (signal.SIGKILL, then):
        until(lambda: served.pids().get("worker", 0) not in (0, *killed), "a worker")
        killed.append(served.pids()["worker"])
        os.kill(killed[-1], number)
    stream.join(PATIENCE)
    assert stream.events[-1] == "[DONE]" and stream.text == undisturbed.text
    last, log = served.pids()["worker"], served.log.read_text()
    assert alive(int(server)) and int(server) not in (last, *killed)
    # A fork has the command line of what it was forked from: nothing was loaded again.
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in (server, last)]
    assert commands[0] == commands[1] and "--fork-server" in commands[0].split("\0")
    assert stream.longest_pause < 10.0
    assert re.search(rf"worker\[{last}\] - \d+ KV pages are there from the worker before", log)


def test_of_several_what_is_stopped_is_replaced_and_sigterm_ends_all_behind_the_last_request(
    stories: Path, tmp_path: Path
) -> None:
    """Two gateways and two tokenizers."""
    server = serve(tmp_path, stories, "--gateways", "2", "--tokenizers", "2")
    try:
        server.ready()
        until(lambda: len({gateway(server) for _ in range(20)}) == 2, "both share the port")
        services = [s["service"] for s in server.fleet()["services"] if s["state"] == "ready"]
        assert services.count("tokenizer") == 2
        before = server.pids()["scheduler"]
        os.kill(before, signal.SIGSTOP)
        until(lambda: server.pids().get("scheduler", before) != before, "the next one is there")
        until(lambda: works(server.url), "and it works")
        pids, stream = server.pids(), Stream(server.url)
        assert stream.started.wait(PATIENCE)
        server.process.send_signal(signal.SIGTERM)
        stream.join(PATIENCE)
        assert stream.events[-1] == "[DONE]", stream.events[-2:]
        assert server.process.wait(PATIENCE) == 0
        assert not [service for service, pid in pids.items() if alive(pid)]
    finally:
        server.close()
    assert f"scheduler[{before}] is stopped: killing it" in server.log.read_text()


def gateway(server: Served) -> str:
    """Who answers a new connection."""
    return next(s["name"] for s in server.fleet()["services"] if s["service"] == "gateway")


@pytest.mark.parametrize("flags", [(), ("--worker.dtype", "float32")])
def test_a_model_that_cannot_be_loaded_ends_everything_with_a_sentence(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"architectures": ["Nothing"]}))
    server = serve(tmp_path, model, *flags)
    try:
        assert server.process.wait(PATIENCE) == 3
    finally:
        server.close()
    log = server.log.read_text()
    assert "stopping all" in log
    assert "Traceback" not in log


def test_a_port_in_use_is_said_before_anything_starts(served: Served, stories: Path) -> None:
    port = served.url.rpartition(":")[2]
    command = [sys.executable, "-m", "baton", "serve", str(stories), "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2
    assert f"Cannot listen on 127.0.0.1 port {port}" in done.stderr


def test_children_do_not_survive_a_killed_supervisor(served: Served) -> None:
    """The last one: of the server that the others have used."""
    pids = served.pids()
    served.process.kill()
    served.process.wait(PATIENCE)
    until(lambda: not any(alive(pid) for pid in pids.values()), "all children end")
