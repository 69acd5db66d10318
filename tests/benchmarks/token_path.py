"""The path of a token without a model: how many a second, for how much processor time, how late.

Gateway, tokenizer, mm-preprocess and scheduler as real processes; workers that make tokens out of
nothing, one of each of their streams per step; a client that reads all streams. A token is the time
at which it was made, so what a client reads tells how long it was on its way.

    python -m tests.benchmarks.token_path [--streams 256] [--workers 1] [--step-ms 0,12.5,25,50]
    [--seconds 10] python -m tests.benchmarks.token_path --step-ms 50 --profile gateway

One worker is the worst case: all streams are in one batch, and their tokens leave at the same
moment. Several share the streams, and their steps are not aligned (`steps`).

A step of 0 ms is as fast as the scheduler takes it; what the gateway cannot write in time it joins.
Whoever keeps up has a lateness that does not grow with the time. Processor time per token hardly
depends on what else the machine does. `--profile` tells in which functions a service spends it.
"""

from __future__ import annotations

import json
import os
import random
import re
import select
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal

import httpx
import numpy as np
from pydantic import Field
from rich.console import Console
from rich.table import Table

from baton.net.discovery import StaticDirectory
from baton.net.sockets import Client, wait
from baton.net.topology import FLEET
from baton.process.lifecycle import Heartbeat
from baton.protocol import WorkerInfo
from baton.settings import SERVICES, Settings, environment
from baton_ops.supervisor.supervisor import TICK_SECONDS, Supervisor
from tests.benchmarks.scheduler_capacity import Worker
from tests.fakes.profiled_service import shares

VOCAB = 49152
"""Of the default model, whose tokenizer serves."""
_TICKS = 10_000
"""Of the clock that tokens show, per second: it goes round in about 5 s."""
_SAMPLED = 17
"""One read in so many is read word by word: of every stream in its turn."""
_ANSWER = 400
"""Tokens of an answer, give or take half."""
_IDS = re.compile(rb'"token_ids":\[([0-9,]+)\]')
_LAST, _DONE = b"0\r\n\r\n", b"data: [DONE]\n\n\r\n0\r\n\r\n"
_WARM_SECONDS = 4.0
_APART = 0.02
"""By how much the steps of a worker are longer than those of the one before."""
_FUNCTIONS = 60
"""Of a profile, how many are shown."""
_CLOCK = os.sysconf("SC_CLK_TCK")


def now() -> int:
    """The time as a token."""
    return int(time.monotonic() * _TICKS) % VOCAB


class TimedWorker(Worker):
    """Its tokens are the time at which they were made."""

    def token(self) -> int:
        """See `Worker.token`."""
        return now()


def steps(step_ms: float, workers: int) -> list[float]:
    """Milliseconds of each worker's steps: `step_ms` on average. They differ by a few per cent, as
    those of real workers do: in the course of a run any two are in step, and out of step, alike."""
    middle = (workers - 1) / 2
    return [step_ms * (1 + _APART * (number - middle)) for number in range(workers)]


def work(run_dir: str, number: int, step_ms: float, rows: int) -> None:
    """Be a worker, for as long as whoever started it is there."""
    parent = os.getppid()
    where = StaticDirectory(Settings(run_dir=Path(run_dir)))
    info = WorkerInfo("path", rows * 40, 16, rows, 4096, 1024, VOCAB)
    name = f"w{number}"
    with Client(FLEET, where.first(FLEET), name.encode()) as client:
        worker = TimedWorker(client, name, info)
        _join(worker)
        hello, steps = worker.handshake.hello, count()
        Heartbeat(FLEET, where, hello, lambda: (next(steps), bool(worker.plans))).start()
        due = time.monotonic()
        while os.getppid() == parent:
            if (left := due - time.monotonic()) > 0:
                wait((client,), left)
                worker.hear()
            elif worker.step():
                due = max(due + step_ms / 1e3, time.monotonic())
            else:
                wait((client,), 0.05)


def _join(worker: Worker) -> None:
    while worker.handshake.server is None:
        if (hello := worker.handshake.due(time.monotonic())) is not None:
            worker.client.send(hello)
        wait((worker.client,), 0.05)
        worker.hear()


@dataclass
class Counted:
    """What the client has seen."""

    tokens: int = 0
    late: list[float] = field(default_factory=list)
    """Milliseconds between making and reading a token, of the sampled reads."""
    reads: int = 0

    def take(self, data: bytes) -> None:
        """Count what was read. Where the gateway falls behind, an event has several tokens."""
        found = b",".join(_IDS.findall(data))
        self.tokens += found.count(b",") + (found != b"")
        self.reads += 1
        if self.reads % _SAMPLED == 0 and found:
            here = now()
            late = [(here - int(token)) % VOCAB for token in found.split(b",")]
            self.late += [ticks / _TICKS * 1e3 for ticks in late]


class Stream:
    """A connection that asks for one answer after the other, as plainly as it can be done: what
    the client takes of the processors, the services cannot have."""

    def __init__(self, port: int, number: int) -> None:
        self._random, self._number = random.Random(number), number
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setblocking(False)
        self.fileno = self._socket.fileno()
        self._before = b""

    def ask(self) -> None:
        """Ask for an answer. They differ in length, so that they do not end all at once."""
        length = self._random.randrange(_ANSWER // 2, _ANSWER * 3 // 2)
        body = {"model": "path", "max_tokens": length, "stream": True, "ignore_eos": True}
        asked = json.dumps(body | {"prompt": [self._number + 1] * 32, "return_token_ids": True})
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(asked)}\r\n\r\n"
        self._socket.sendall((head + asked).encode())

    def hear(self, counted: Counted) -> None:
        """Read what has come; at the end of an answer ask for the next."""
        data = self._socket.recv(2**16)
        counted.take(data)
        if data.endswith(_LAST):
            assert (self._before + data).endswith(_DONE), self._before + data
            self.ask()
        self._before = data

    def close(self) -> None:
        """Leave."""
        self._socket.close()


class Crowd:
    """All streams, read by one thread."""

    def __init__(self, port: int, streams: int) -> None:
        self.counted = Counted()
        self._poll = select.epoll()
        self._streams = {
            stream.fileno: stream for n in range(streams) for stream in [Stream(port, n)]
        }
        for stream in self._streams.values():
            self._poll.register(stream.fileno, select.EPOLLIN)
            stream.ask()

    def read(self, seconds: float) -> None:
        """Read for so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for number, _ in self._poll.poll(left):
                self._streams[number].hear(self.counted)

    def close(self) -> None:
        """Leave."""
        self._poll.close()
        for stream in self._streams.values():
            stream.close()


class System:
    """The services around such workers."""

    def __init__(self, folder: Path, options: Options, step_ms: float) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        leash = [sys.executable, "-m", "baton_ops.supervisor.child_main"]
        commands = {s: [*leash, s] for s in SERVICES if s != "worker"}
        if profiled := options.profile:
            sampled = [sys.executable, "-m", "tests.fakes.profiled_service"]
            commands[profiled] = [*sampled, str(folder), profiled]
        rows = -(-options.streams // options.workers)
        for number, lasting in enumerate(steps(step_ms, options.workers)):
            made = "from tests.benchmarks.token_path import work; "
            made += f"work({str(folder / 'run')!r}, {number}, {lasting}, {rows})"
            commands[f"worker {number}"] = [sys.executable, "-c", made]
        given = {
            "BATON_MODEL": options.model,
            "BATON_SERVED_MODEL_NAME": "path",
            "BATON_RUN_DIR": str(folder / "run"),
            "BATON_GATEWAY_PORT": str(self.port),
            "BATON_LOG_LEVEL": "error",
        }
        self._supervisor = Supervisor(commands, {**environment(), **given}, 5.0)
        self._stopped = threading.Event()

    def __enter__(self) -> System:
        self._supervisor.start()
        threading.Thread(target=self._watch, daemon=True).start()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}/health/ready").status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise TimeoutError("the system does not become ready")

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._supervisor.kill()

    def _watch(self) -> None:
        while not self._stopped.wait(TICK_SECONDS):
            self._supervisor.tick()

    def used(self) -> dict[str, float]:
        """Processor seconds so far, of all workers together and of each other process."""
        spent: dict[str, float] = {}
        for name, child in self._supervisor.children.items():
            if child.process is not None:
                kind = name.split()[0]
                spent[kind] = spent.get(kind, 0.0) + _used(child.process.pid)
        return spent | {"client": time.process_time()}


def _used(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK


class Options(Settings, prefix="path"):
    """Measure the path of a token."""

    streams: int = Field(default=256, ge=1)
    """Streams at a time."""
    workers: int = Field(default=1, ge=1, le=64)
    """Workers that share them."""
    step_ms: tuple[float, ...] = (0.0, 12.5, 25.0, 50.0)
    """Milliseconds between two tokens of a stream, in turn."""
    seconds: float = Field(default=10.0, gt=0)
    """How long each is measured."""
    profile: Literal["", "gateway", "tokenizer", "scheduler"] = ""
    """A service whose functions are sampled."""


@dataclass
class Figures:
    """Of one run."""

    step_ms: float
    rate: float
    late: tuple[float, float]
    """Milliseconds on the way, median and 99th percentile."""
    micros: dict[str, float]
    """Processor microseconds per token, by process."""
    shares: list[tuple[str, float]]
    """Functions of the profiled service, and their shares of its time."""


def _load(crowd: Crowd, system: System, seconds: float) -> tuple[float, dict[str, float]]:
    """(tokens a second, processor seconds per token), once all streams run."""
    crowd.read(_WARM_SECONDS)
    counted, before, begin = crowd.counted, system.used(), time.monotonic()
    first = counted.tokens
    counted.late.clear()
    crowd.read(seconds)
    used, passed, made = system.used(), time.monotonic() - begin, counted.tokens - first
    assert made, "no token has come"
    return made / passed, {name: (used[name] - before[name]) / made for name in used}


def measure(options: Options, step_ms: float) -> Figures:
    """One run in a folder of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="baton-") as folder,
        System(Path(folder), options, step_ms) as system,
        closing(Crowd(system.port, options.streams)) as crowd,
    ):
        rate, used = _load(crowd, system, options.seconds)
        found = shares(Path(folder), _FUNCTIONS) if options.profile else []
    late = np.percentile(crowd.counted.late, (50, 99))
    micros = {name: 1e6 * seconds for name, seconds in used.items()}
    return Figures(step_ms, rate, (float(late[0]), float(late[1])), micros, found)


def table(found: Sequence[Figures], options: Options) -> Table:
    """For people."""
    names = list(found[0].micros)
    workers = "one worker" if options.workers == 1 else f"{options.workers} workers"
    title = f"{options.streams} streams of {workers}; processor time in us per token"
    grid = Table("step", "tokens/s", "late p50 / p99, ms", *names, "all", title=title)
    for run in found:
        micros = [run.micros[name] for name in names]
        late = f"{run.late[0]:.1f} / {run.late[1]:.1f}"
        shown = [f"{value:.1f}" for value in (*micros, sum(micros))]
        grid.add_row(f"{run.step_ms:g} ms", f"{run.rate:,.0f}", late, *shown)
    return grid


def main(argv: Sequence[str]) -> None:
    """Measure and print."""
    options = Options.load(argv)
    found = [measure(options, step_ms) for step_ms in options.step_ms]
    console = Console(width=140)
    console.print(table(found, options))
    for name, share in found[-1].shares:
        console.print(f"{share:7.1%}  {name}", highlight=False)


if __name__ == "__main__":
    main(sys.argv[1:])
