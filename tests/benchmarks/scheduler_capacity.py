"""How many busy workers one scheduler process keeps up with, and what happens beyond.

A real scheduler over real sockets, with workers that make no tokens of their own. Time is counted,
not waited for: a step takes `step_ms`, a turn of the scheduler takes the processor time of its
thread, and what ends while a turn runs is in the next one, as between processes. So the figures are
those of a scheduler with a core of its own, also where this machine is shared. Arrivals replace
what ends.

    worker 1   | step | step | step | step .......| step |
    worker 2      | step | step | step .....| step |          waits: its plan is not there yet
    scheduler  ----- turn - turn -- turn turn turn --         busy: no time between two turns

    python -m tests.benchmarks.scheduler_capacity [--workers 1,8,32] [--rows 256] [--steps 40]
    [--step-ms 20] python -m tests.benchmarks.scheduler_capacity --plot --workers 1,2,4,8,16,32,64

`--plot` goes on where `baton bench scaling` ends for want of machines: it writes what a token costs
such a fleet, with the knee by the same rule, into `bench/`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from baton import __version__
from baton.net.discovery import socket_path
from baton.net.handshake import ClientHandshake, incarnation
from baton.net.sockets import Client, Server, wait
from baton.net.topology import FLEET, FRONTEND
from baton.protocol import Hello, Plan, Result, Sampling, Submit, Tokens, TruncatePlan, WorkerInfo
from baton.protocol.token_columns import pack
from baton.settings import Settings
from baton_ops.bench import machine
from baton_ops.bench.knee import Curve
from baton_ops.bench.plot import bends
from baton_scheduler.config import Config
from baton_scheduler.service import Service
from baton_worker.engine.plan_queue import PlanQueue

_LENGTH = 200
"""Tokens of every answer, give or take half."""


class Worker:
    """Answers plans with made-up tokens, in numpy columns: it costs next to nothing."""

    def __init__(self, client: Client, name: str, info: WorkerInfo) -> None:
        self.client = client
        hello = Hello("worker", name, incarnation(), __version__, worker=info)
        self.handshake = ClientHandshake(hello)
        self.plans = PlanQueue()
        self.lengths = np.zeros(info.max_num_seqs, np.int64)

    def hear(self) -> None:
        """Take in what has come."""
        for received in self.client.drain():
            message = received.message
            if isinstance(message, Plan):
                self.plans.add(message)
            elif isinstance(message, TruncatePlan):
                self.plans.truncate(message.step)
            else:
                self.handshake.receive(message, 0.0)

    def token(self) -> int:
        """What every row samples in this step."""
        return 7

    def step(self) -> bool:
        """Run one step. False when there is none."""
        self.hear()
        if not self.plans:
            return False
        plan, turn = self.plans.first
        if not turn:
            self.lengths[[new.slot for new in plan.new_sequences]] = 0
        turns = (
            np.frombuffer(plan.steps_per_row, "<u4")
            if plan.steps_per_row
            else np.ones(len(plan.samples))
        )
        going = (np.frombuffer(plan.samples, np.uint8) > 0) & (turns > turn)
        rows = np.frombuffer(plan.rows, "<u4")[going]
        first, count = self.lengths[rows].astype("<u4"), len(rows)
        self.lengths[rows] += 1
        self.plans.advance()
        tokens = np.full(count, self.token(), "<i4").tobytes()
        result = Result(
            plan.epoch, plan.step + turn, rows.tobytes(), first.tobytes(), b"\x01" * count, tokens
        )
        self.client.send(self.plans.with_truncation(result))
        return True


class Gateway:
    """Keeps a number of sequences in flight."""

    def __init__(self, client: Client, seed: int = 0) -> None:
        self.client = client
        self.handshake = ClientHandshake(Hello("gateway", "gateway", incarnation(), __version__))
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
                self.handshake.receive(received.message, 0.0)

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

    micros: float
    """CPU microseconds of the scheduler per worker step."""
    stepping: float
    """Share of their time that workers ran steps, of all that they could."""
    busy: float
    """Share of its time that the scheduler ran."""


def measure(workers: int, rows: int, steps: int, max_steps: int, step_seconds: float) -> Figures:
    """Run `steps` steps of each of so many full workers."""
    with tempfile.TemporaryDirectory(prefix="cap") as folder, ExitStack() as stack:
        run_dir = Path(folder)
        config = Config(run_dir=run_dir, max_steps_per_plan=max_steps, max_num_queued_reqs=100_000)
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
        timeline = Timeline(service, gateway, crowd, step_seconds)
        while service.state.num_running < 0.95 * rows * workers or len(service.state.queue):
            timeline.run(1)
        timeline.run(4)  # What was placed last is computed, too.
        return timeline.run(steps)


def _join(service: Service, gateway: Gateway, crowd: list[Worker]) -> None:
    everybody = [gateway, *crowd]
    end = time.monotonic() + 30
    while any(one.handshake.server is None for one in everybody):
        assert time.monotonic() < end, "nobody answers"
        for one in everybody:
            due = one.handshake.due(time.monotonic())
            if due is not None:
                one.client.send(due)
        time.sleep(0.01)
        service.turn()
        for one in everybody:
            one.hear()


class Timeline:
    """Who runs when. Workers begin out of step with each other."""

    def __init__(
        self, service: Service, gateway: Gateway, crowd: list[Worker], step_seconds: float
    ) -> None:
        self.service, self.gateway, self.crowd = service, gateway, crowd
        self.step = step_seconds
        self.now = 0.0
        """When the scheduler is free again."""
        self.ends = [(step_seconds * n / len(crowd), n) for n in range(len(crowd))]
        """Heap of the steps that run."""
        self.waiting: dict[int, float] = {}
        """Workers without a plan, since when."""
        heapify(self.ends)

    def run(self, rounds: int) -> Figures:
        """Until every worker has had so many steps, on average."""
        started, seconds, done = self.now, 0.0, 0
        while done < rounds * len(self.crowd):
            if self.ends:
                self.now = max(self.now, self.ends[0][0])
            ran = self._end_steps()
            spent = self._turn(len(ran))
            self.now += spent
            seconds, done = seconds + spent, done + len(ran)
            self._start_steps()
        span = self.now - started
        most = span / self.step * len(self.crowd)
        return Figures(1e6 * seconds / done, done / most, seconds / span)

    def _end_steps(self) -> list[int]:
        """Results of all steps that are over."""
        ran = []
        while self.ends and self.ends[0][0] <= self.now:
            end, number = heappop(self.ends)
            if self.crowd[number].step():
                ran.append(number)
            self._next(number, end)
        return ran

    def _next(self, number: int, end: float) -> None:
        if self.crowd[number].plans:
            heappush(self.ends, (end + self.step, number))
        else:
            self.waiting[number] = end

    def _turn(self, results: int) -> float:
        """Seconds that the scheduler takes until it has settled so many results."""
        seconds, goal = 0.0, self._settled() + results
        while True:
            if results:
                wait((self.service._fleet,), 0.05)
            begin = time.thread_time()
            self.service.turn()
            seconds += time.thread_time() - begin
            self.gateway.hear()
            if self._settled() >= goal:
                return seconds

    def _settled(self) -> int:
        return sum(worker.steps for worker in self.service.state.fleet)

    def _start_steps(self) -> None:
        """Whoever has waited for a plan that has come begins."""
        for number, since in list(self.waiting.items()):
            worker = self.crowd[number]
            wait((worker.client,), 0.005)
            worker.hear()
            if worker.plans:
                del self.waiting[number]
                heappush(self.ends, (max(since, self.now) + self.step, number))


class Capacity(Settings, prefix="capacity"):
    """Measure the scheduler's share of the work."""

    workers: tuple[int, ...] = (1, 8, 32)
    """Numbers of workers."""
    rows: int = 256
    """Sequences on each."""
    steps: int = 40
    """Steps of each that are measured."""
    step_ms: float = 20.0
    """What a step takes on a real worker."""
    plot: bool = False
    """Also write a plot and JSON; for two or more numbers of workers, ascending."""
    out: Path = Path("bench")
    """Where to."""


PLANS = (1, 8)
"""Steps of a plan."""


def curve(options: Capacity, max_steps: int, found: Sequence[Figures]) -> Curve:
    """What a token costs the fleet, and of it the scheduler. Workers that wait make it dearer."""
    most = [n * options.rows / options.step_ms * 1e3 for n in options.workers]
    costs = {
        "us of the fleet per token": tuple(
            1e6 / (rate * run.stepping) for rate, run in zip(most, found, strict=True)
        ),
        "us of the scheduler per token": tuple(run.micros / options.rows for run in found),
    }
    title = f"Plans of {max_steps} step{'s' * (max_steps > 1)}, {options.rows} sequences per worker"
    why = "the scheduler's core is full and workers wait for plans"
    return Curve(title, "workers", options.workers, costs, why)


def show(options: Capacity, found: dict[int, list[Figures]]) -> Table:
    """For people."""
    table = Table(title=f"one scheduler process, workers of {options.rows} sequences")
    names = ("workers", "steps of a plan", "us a step", "scheduler busy", "workers stepping")
    for name in (*names, "wait between steps, ms"):
        table.add_column(name, justify="right")
    for turn, workers in enumerate(options.workers):
        for max_steps, runs in found.items():
            run = runs[turn]
            shares = (f"{100 * run.busy:.0f} %", f"{100 * run.stepping:.0f} %")
            wait_ms = options.step_ms * max(0.0, 1 / run.stepping - 1)
            row = (str(workers), str(max_steps), f"{run.micros:.0f}", *shares)
            table.add_row(*row, f"{wait_ms:.1f}")
    return table


def draw(options: Capacity, found: dict[int, list[Figures]], console: Console) -> None:
    """Write the plot and the JSON, and print what the curves say."""
    curves = [curve(options, max_steps, runs) for max_steps, runs in found.items()]
    told = [{**asdict(one), "knee": one.knee, "sentence": one.sentence} for one in curves]
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / "capacity"
    report = {"machine": machine.facts(), "step_ms": options.step_ms, "curves": told}
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    title = f"One scheduler, simulated workers of {options.step_ms:g} ms a step, "
    bends(curves, title + machine.facts()["cpu"], stem.with_suffix(".png"))
    for one in curves:
        console.print(f"{one.name}: {one.sentence}", highlight=False)
    console.print(f"wrote {stem}.json and {stem}.png", highlight=False)


def main(argv: Sequence[str]) -> None:
    """Measure and print."""
    options, console = Capacity.load(argv), Console()
    found: dict[int, list[Figures]] = {max_steps: [] for max_steps in PLANS}
    with Progress(console=console) as progress:
        for workers in progress.track(options.workers, description="workers"):
            for max_steps, runs in found.items():
                lasting = options.step_ms / 1000
                runs.append(measure(workers, options.rows, options.steps, max_steps, lasting))
    console.print(show(options, found))
    if options.plot:
        draw(options, found, console)


if __name__ == "__main__":
    main(sys.argv[1:])
