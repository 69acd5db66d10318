"""What one round of the scheduler costs: to settle a result, and to plan the next step.

The state machine alone, without sockets, on one core: results come as frames from a worker that
makes up its tokens, and plans leave as frames. Only the scheduler's half is timed, in processor
time of its thread. `steady`: every row decodes and none ends. `arrivals`: whatever ends is
replaced, so some rows come and go with every step.

    python -m tests.benchmarks.scheduler_rounds [--rows 256] [--rounds 2000]
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from baton.net.codec import decode, encode
from baton.net.sockets import Received
from baton.net.topology import FLEET
from baton.protocol import Envelope, Message, Result, Sampling, Submit, Tokens, WorkerInfo
from baton.protocol.token_columns import pack
from baton.settings import Settings
from baton_scheduler.events import (
    Arrived,
    Clock,
    Decision,
    Dispatch,
    Event,
    Reply,
    Settled,
    Tick,
    WorkerJoined,
    WorkerMessage,
)
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.state import State
from tests.benchmarks.scheduler_capacity import Worker

_LONG = 100_000
"""Tokens of an answer that does not end while it is measured."""
_SHORT = 200
"""Tokens of one that does, give or take half."""
_STEP = 0.02
"""Seconds from one round to the next, in the state's time."""


class Wire:
    """Stands in for a `Client`: frames both ways, and nobody between."""

    def __init__(self) -> None:
        self.plans: deque[list[bytes]] = deque()
        self.results: deque[list[bytes]] = deque()

    def drain(self) -> list[Received]:
        """What has come for the worker."""
        frames, self.plans = self.plans, deque()
        return [Received(b"", *decode(each, FLEET.replies)) for each in frames]

    def send(self, message: Message, envelope: Envelope | None = None) -> bool:
        """A result leaves the worker."""
        self.results.append(encode(message, envelope))
        return True


class Rounds:
    """One full worker, and a state that is timed."""

    def __init__(self, rows: int, max_steps: int, *, steady: bool) -> None:
        self.state = State(
            SchedulerOptions(max_steps_per_plan=max_steps, max_num_queued_reqs=100_000)
        )
        self.wire = Wire()
        length = 2 * _LONG if steady else 4096
        pages = rows * (400 if steady else 32)
        info = WorkerInfo("m", pages, 16, rows, 2048, length, 32_000)
        self.worker = Worker(self.wire, "w", info)  # type: ignore[arg-type]
        self._random = np.random.default_rng(0)
        self._steady, self._handles = steady, 0
        self.apply(WorkerJoined("w", 1, info))
        for _ in range(rows):
            self.submit()
        self.apply(Tick(self.state.now))

    def submit(self) -> None:
        """One more sequence."""
        self._handles += 1
        least, most = (_LONG, _LONG + 1) if self._steady else (_SHORT // 2, _SHORT * 3 // 2)
        length = int(self._random.integers(least, most))
        prompt = pack(self._random.integers(0, 30_000, 64))
        sampling = Sampling(length, seed=self._handles)
        self.apply(Arrived("g", Submit(self._handles, f"r{self._handles}", prompt, sampling)))

    def apply(self, event: Event) -> int:
        """Send what is decided. Returns how many sequences have ended."""
        return sum(map(self._send, self.state.apply(event)))

    def _send(self, decision: Decision) -> int:
        frames = encode(decision.message)
        if isinstance(decision, Dispatch | WorkerMessage):
            self.wire.plans.append(frames)
        elif isinstance(decision, Reply) and isinstance(decision.message, Tokens):
            return len(decision.message.finished)
        return 0

    def round(self) -> float:
        """Run a step and settle it. Returns the seconds of processor time that the state took."""
        assert self.worker.step()
        begin = time.thread_time()
        now = self.state.now + _STEP
        self.apply(Clock(now))
        ended = 0
        while self.wire.results:
            _, message = decode(self.wire.results.popleft(), FLEET.requests)
            assert isinstance(message, Result)
            ended += self.apply(Settled("w", message))
        self.apply(Tick(now))
        seconds = time.thread_time() - begin
        for _ in range(ended):
            self.submit()
        return seconds


def measure(rows: int, max_steps: int, rounds: int, *, steady: bool) -> list[float]:
    """Seconds of each round, once every row decodes."""
    here = Rounds(rows, max_steps, steady=steady)
    for _ in range(40):
        here.round()
    return [here.round() for _ in range(rounds)]


class Cost(Settings, prefix="rounds"):
    """Measure what a step costs the scheduler."""

    rows: int = 256
    """Sequences on the worker."""
    rounds: int = 2000
    """Steps that are measured."""


def main(argv: Sequence[str]) -> None:
    """Print a table."""
    options = Cost.load(argv)
    table = Table(title=f"settle one result and plan the next step: {options.rows} sequences, us")
    for name in ("rows", "steps of a plan", "median", "mean", "p99"):
        table.add_column(name, justify="right")
    for steady in (True, False):
        for max_steps in (1, 8):
            seconds = measure(options.rows, max_steps, options.rounds, steady=steady)
            found = 1e6 * np.array(seconds)
            figures = (np.median(found), found.mean(), np.quantile(found, 0.99))
            kind = "steady" if steady else "arrivals"
            table.add_row(kind, str(max_steps), *(f"{figure:.0f}" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
