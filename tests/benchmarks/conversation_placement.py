"""Conversations of several turns, placed in different ways, in the simulator.

    python -m tests.benchmarks.conversation_placement [--conversations 48] [--per-second 4] [--seeds
    1]

Every conversation begins with one of four system prompts, and every turn sends all that was said
before. Speeds are about those of an 8B model on one accelerator; arrivals are the same for every
way to place them. What is printed is the mean over the seeds: simulated, so it is the same on every
machine.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from msgspec import structs
from pydantic import Field
from rich.console import Console
from rich.table import Table

from baton.protocol import Sampling, Submit
from baton.protocol.token_columns import pack
from baton.settings import Settings
from baton_scheduler.events import Arrived, Event, WorkerJoined
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.replay.script import Script
from baton_scheduler.replay.simulator import SimulatedLatency, Simulation
from tests.fakes.hash_worker import VOCAB, worker_info

STEP = (0.008, 5e-5)
"""Seconds of a step, and per token."""
PULL = (0.002, 2e-5)
"""The same of a transfer: 128 KiB per token at about 6.5 GB/s."""
TOKEN_BYTES = 128 * 1024
PAGES = 2048
"""Per worker, of 16 tokens: fewer than all conversations need together."""
FLEETS = {
    "1 prefill, 3 decode": ("prefill", "decode", "decode", "decode"),
    "4 both": ("both",) * 4,
}
WAYS = {
    "round-robin": SchedulerOptions(placement_policy="round-robin", local_prefill_max_tokens=0),
    "least-loaded": SchedulerOptions(placement_policy="least-loaded", local_prefill_max_tokens=0),
    "cost": SchedulerOptions(),
}


class Bench(Settings, prefix="conversations"):
    """Compare ways to place conversations."""

    conversations: int = Field(default=48, ge=1)
    """Of one run."""
    per_second: float = Field(default=4.0, gt=0)
    """How many of them begin in a second."""
    turns: int = Field(default=4, ge=1)
    """Of each of them."""
    seeds: int = Field(default=1, ge=1)
    """Runs that are averaged."""


@dataclass
class Load:
    """Turns by the times at which they arrive, with their answers."""

    turns: list[tuple[float, list[int], list[int]]] = field(default_factory=list)
    """(when, prompt, answer)"""


def load(options: Bench, seed: int) -> Load:
    """All turns of all conversations, in the order of their arrival."""
    draw, made = random.Random(seed), Load()
    systems = [_words(draw, 600) for _ in range(4)]
    for _ in range(options.conversations):
        when = draw.uniform(0, options.conversations / options.per_second)
        said = list(draw.choice(systems))
        for _ in range(options.turns):
            said = said + _words(draw, int(min(2000, 40 + draw.expovariate(1 / 160))))
            answer = _words(draw, draw.randint(40, 240))
            made.turns.append((when, said, answer))
            said = said + answer
            # Reading and typing begin when the answer is there.
            when += 0.5 + 0.015 * len(answer) + draw.expovariate(1 / 4)
    made.turns.sort(key=lambda turn: turn[0])
    return made


def _words(draw: random.Random, number: int) -> list[int]:
    return [draw.randrange(VOCAB) for _ in range(number)]


def script(load: Load, roles: Sequence[str]) -> Script:
    """What the simulator needs: arrivals, answers and speeds."""
    inputs: list[tuple[float, Event]] = [(0.0, event) for event in _joins(roles)]
    for handle, (when, prompt, answer) in enumerate(load.turns):
        submit = Submit(handle, f"r{handle}", pack(prompt), Sampling(len(answer)))
        inputs.append((when, Arrived("g", submit)))
    return Script([answer for _, _, answer in load.turns], set(), inputs, STEP, PULL)


def _joins(roles: Sequence[str]) -> Iterator[Event]:
    for number, role in enumerate(roles):
        name = f"{role}-{number}"
        info = worker_info(
            num_pages=PAGES, max_num_seqs=128, max_num_batched_tokens=2048, max_model_len=16_384,
            role=role, pages_address=name,
        )  # fmt: skip
        info = structs.replace(info, kv_bytes=PAGES * info.page_size * TOKEN_BYTES)
        yield WorkerJoined(name, number + 1, info)


class Row(NamedTuple):
    """One way to place conversations, on one fleet."""

    fleet: str
    way: str
    figures: SimulatedLatency


def measure(options: Bench) -> Iterator[Row]:
    """Every way on every fleet."""
    loads = [load(options, seed) for seed in range(options.seeds)]
    for fleet, roles in FLEETS.items():
        for way, limits in WAYS.items():
            runs = [_figures(limits, script(each, roles)) for each in loads]
            columns = zip(*runs, strict=True)
            hits, mean, p95, moved = (fmean(column) for column in columns)
            yield Row(fleet, way, SimulatedLatency(hits, mean, p95, round(moved)))


def _figures(limits: SchedulerOptions, script: Script) -> SimulatedLatency:
    simulation = Simulation(limits, script)
    waits = simulation.run()
    assert len(waits) == len(script.logs), "a turn was not answered"
    return simulation.figures()


def main(argv: Sequence[str]) -> None:
    """Print one line per fleet and way."""
    table = Table(title="conversations, simulated")
    for name in ("fleet", "placement"):
        table.add_column(name)
    for name in ("prompt from cache", "TTFT mean", "TTFT p95", "tokens moved"):
        table.add_column(name, justify="right")
    for fleet, way, found in measure(Bench.load(argv)):
        times = (f"{1000 * found.mean:.0f} ms", f"{1000 * found.p95:.0f} ms")
        table.add_row(fleet, way, f"{found.hits:.1%}", *times, f"{found.moved:,}")
    Console().print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
