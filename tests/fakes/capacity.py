"""How many busy workers one scheduler process keeps up with: its CPU time per worker step.

A real scheduler over real sockets, with workers that answer at once and make no tokens of their
own. Only the thread time of the scheduler's turns is counted; every result is a turn by itself, as
when workers are out of step with each other. Arrivals replace what ends, so rows come and go.

    python -m tests.fakes.capacity [--workers 1,8,32] [--rows 256] [--steps 40] [--step-ms 20]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from baton import __version__
from baton.discovery import socket_path
from baton.peers import Greeting, incarnation
from baton.protocol import Cut, Hello, Plan, Result, Sampling, Submit, Tokens, WorkerInfo
from baton.settings import Settings
from baton.tokens import pack, unpack
from baton.topology import FLEET, FRONTEND
from baton.transport import Client, Server, wait
from baton_scheduler.config import Config
from baton_scheduler.service import Service
from baton_worker.plans import Plans

_LENGTH = 200
"""Tokens of every answer, give or take half."""


class Worker:
    """Answers plans with made-up tokens, in numpy columns: it costs next to nothing."""

    def __init__(self, client: Client, name: str, info: WorkerInfo) -> None:
        self.client = client
        hello = Hello("worker", name, incarnation(), __version__, worker=info)
        self.greeting = Greeting(hello)
        self.plans = Plans()
        self.lengths = np.zeros(info.max_rows, np.int64)

    def hear(self) -> None:
        """Take in what has come."""
        for received in self.client.drain():
            message = received.message
            if isinstance(message, Plan):
                self.plans.add(message)
            elif isinstance(message, Cut):
                self.plans.cut(message.step)
            else:
                self.greeting.heard(message, 0.0)

    def step(self) -> bool:
        """Run one step. False when there is none."""
        self.hear()
        if not self.plans:
            return False
        plan, turn = self.plans.first
        if not turn:
            self.lengths[[new.slot for new in plan.enter]] = 0
        turns = np.frombuffer(plan.turns, "<u4") if plan.turns else np.ones(len(plan.samples))
        going = (np.frombuffer(plan.samples, np.uint8) > 0) & (turns > turn)
        rows = np.frombuffer(plan.rows, "<u4")[going]
        first, count = self.lengths[rows].astype("<u4"), len(rows)
        self.lengths[rows] += 1
        self.plans.advance()
        tokens = np.full(count, 7, "<i4").tobytes()
        result = Result(
            plan.epoch, plan.step + turn, rows.tobytes(), first.tobytes(), b"\x01" * count, tokens
        )
        self.client.send(self.plans.tell(result))
        return True


class Gateway:
    """Keeps a number of sequences in flight."""

    def __init__(self, client: Client, seed: int = 0) -> None:
        self.client = client
        self.greeting = Greeting(Hello("gateway", "gateway", incarnation(), __version__))
        self.received = 0
        self._random = np.random.default_rng(seed)
        self._handles = 0

    def hear(self) -> None:
        """Count tokens, and replace what has ended."""
        for received in self.client.drain():
            if isinstance(received.message, Tokens):
                self.received += len(received.message.tokens) // 4
                self.submit(len(received.message.finished))
            else:
                self.greeting.heard(received.message, 0.0)

    def submit(self, count: int) -> None:
        """Ask for more."""
        for _ in range(count):
            self._handles += 1
            length = int(self._random.integers(_LENGTH // 2, _LENGTH * 3 // 2))
            prompt = pack(self._random.integers(0, 30_000, 64))
            sampling = Sampling(length, seed=self._handles)
            self.client.send(Submit(self._handles, f"r{self._handles}", prompt, sampling))


@dataclass
class Figures:
    """Of one run."""

    workers: int
    max_steps: int
    micros: float
    """CPU microseconds of the scheduler per worker step."""
    per_token: float
    """The same per token."""


def measure(workers: int, rows: int, steps: int, max_steps: int) -> Figures:
    """Run `steps` steps of each of so many full workers."""
    with tempfile.TemporaryDirectory(prefix="cap") as folder, ExitStack() as stack:
        run_dir = Path(folder)
        config = Config(run_dir=run_dir, max_steps=max_steps, max_waiting=100_000)
        paths = (socket_path(run_dir, FRONTEND), socket_path(run_dir, FLEET))
        frontend = stack.enter_context(Server(FRONTEND, paths[0]))
        fleet = stack.enter_context(Server(FLEET, paths[1]))
        service = Service(config, frontend, fleet, lambda: 0.0)
        gateway = Gateway(stack.enter_context(Client(FRONTEND, paths[0], b"gateway")))
        info = WorkerInfo("m", rows * 32, 16, rows, 2048, 4096, 32_000)
        crowd = [
            Worker(stack.enter_context(Client(FLEET, paths[1], b"w%d" % n)), f"w{n}", info)
            for n in range(workers)
        ]
        _join(service, gateway, crowd)
        gateway.submit(rows * workers)
        _rounds(service, gateway, crowd, 12)  # Until every row decodes.
        before = gateway.received
        seconds, done = _rounds(service, gateway, crowd, steps)
        return Figures(
            workers,
            max_steps,
            1e6 * seconds / done,
            1e6 * seconds / max(1, gateway.received - before),
        )


def _join(service: Service, gateway: Gateway, crowd: list[Worker]) -> None:
    everybody = [gateway, *crowd]
    end = time.monotonic() + 30
    while any(one.greeting.server is None for one in everybody):
        assert time.monotonic() < end, "nobody answers"
        for one in everybody:
            due = one.greeting.due(time.monotonic())
            if due is not None:
                one.client.send(due)
        time.sleep(0.01)
        service.turn()
        for one in everybody:
            one.hear()


def _rounds(
    service: Service, gateway: Gateway, crowd: list[Worker], rounds: int
) -> tuple[float, int]:
    """(seconds of CPU time, steps)"""
    seconds, done = 0.0, 0
    for _ in range(rounds):
        for worker in crowd:
            ran = worker.step()
            wait((service._fleet if ran else service._frontend,), 0.05)
            begin = time.thread_time()
            service.turn()
            seconds += time.thread_time() - begin
            done += ran
            gateway.hear()
    return seconds, done


class Capacity(Settings, prefix="capacity"):
    """Measure the scheduler's share of the work."""

    workers: str = "1,8,32"
    """Numbers of workers, separated by commas."""
    rows: int = 256
    """Sequences on each."""
    steps: int = 40
    """Steps of each that are measured."""
    step_ms: float = 20.0
    """What a step takes on a real worker."""


def main(argv: Sequence[str]) -> None:
    """Print a table."""
    options = Capacity.load(argv)
    table = Table(title=f"one scheduler process, workers of {options.rows} sequences")
    for name in ("workers", "steps of a plan", "us a step", "us a token", "workers kept busy"):
        table.add_column(name, justify="right")
    for workers in unpack(pack(map(int, options.workers.split(",")))):
        for max_steps in (1, 8):
            found = measure(workers, options.rows, options.steps, max_steps)
            numbers = (f"{found.micros:.0f}", f"{found.per_token:.2f}")
            most = f"{1000 * options.step_ms / found.micros:.0f}"
            table.add_row(str(workers), str(max_steps), *numbers, most)
    Console().print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
