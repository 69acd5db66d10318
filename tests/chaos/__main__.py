"""`make chaos`: break processes and links at random under load, and compare every token.

make chaos SECONDS=600 STREAMS=64 EVERY=5
make chaos SECONDS=120 STREAMS=8 EVERY=5 ARGS="--real --prefill 1 --decode 2"
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

import httpx
from pydantic import Field
from rich.console import Console

from baton.errors import BatonError
from baton.settings import Settings
from baton_ops.supervisor.liveness import HUNG_SECONDS
from baton_ops.supervisor.process_state import STOPPED_SECONDS
from tests.chaos.faults import USUAL, Kind
from tests.chaos.jobs import JobCounts, Jobs
from tests.chaos.report import Report
from tests.chaos.streams import Oracle, answers, hashes, load
from tests.chaos.system import Crew, Front, System
from tests.chaos.wires import free_port

_KNOWN = 2
"""Different requests per stream to a real model, whose answers are known before anything breaks."""


class Chaos(Settings, prefix="chaos"):
    """Break processes and links at random under load."""

    seconds: float = Field(default=60.0, gt=0)
    """How long."""
    streams: int = Field(default=32, ge=1)
    """Streams at a time."""
    every: float = Field(default=5.0, gt=0)
    """Seconds between two faults."""
    kinds: tuple[Kind, ...] = USUAL
    """Kinds of faults."""
    vocab: int = 49152
    """Tokens of the model's vocabulary."""
    workers: int = Field(default=3, ge=0)
    """Workers that prefill and decode; 0 when the next two are given."""
    prefill: int = Field(default=0, ge=0)
    """Workers that prefill and pass on what they have begun."""
    decode: int = Field(default=0, ge=0)
    """Workers that decode what prefill workers pass on."""
    gateways: int = Field(default=1, ge=1)
    """Gateways behind one port."""
    tokenizers: int = Field(default=1, ge=1)
    """Tokenizers side by side."""
    transports: str = "tcp"
    """Over what keys travel between real workers. What does not go over a wire, as shm, is not
    harmed."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Processes of each real worker."""
    real: bool = False
    """Run the model, in float32; without this, workers have none, and token i is a hash."""
    step_ms: float = 20.0
    """Milliseconds that a step of a worker without a model takes."""
    spares: bool = True
    """Gateways, tokenizers and the scheduler have spares, as under `baton serve`."""
    fork_workers: bool = True
    """Workers with a model are forked from one that has loaded, as under `baton serve`."""
    stopped_seconds: float = Field(default=STOPPED_SECONDS, ge=0)
    """As of `baton serve`."""
    hung_seconds: float = Field(default=HUNG_SECONDS, ge=0)
    """As of `baton serve`."""
    log_level: Literal["debug", "info", "warning", "error"] = "error"
    """Least severe message of the services that is shown."""
    batch_lines: int = Field(default=0, ge=0)
    """Lines of a batch beside the streams."""
    background: int = Field(default=0, ge=0)
    """Responses in the background beside the streams; with --real."""
    tool_calls: int = Field(default=0, ge=0)
    """Streams at a time that call a tool; with --real."""
    seed: int = 0
    """Of the faults and the requests."""

    def system(self, folder: Path, port: int) -> System:
        """The system that is asked for, not yet started."""
        if not self.real and (self.prefill or self.decode):
            raise BatonError("Workers without a model have no keys to pass on: add --real.")
        if not self.real and (self.background or self.tool_calls):
            raise BatonError("Workers without a model follow no grammar: add --real.")
        if "kill_pair" in self.kinds and self.workers + self.prefill + self.decode < 2:
            raise BatonError("There is no pair of workers to kill: run at least two.")
        crew = Crew(
            self.workers,
            self.prefill,
            self.decode,
            real=self.real,
            vocab=self.vocab,
            step_ms=self.step_ms,
            transports=self.transports,
            ranks=self.tensor_parallel,
        )
        patience = (self.stopped_seconds, self.hung_seconds)
        front = Front(self.gateways, self.tokenizers, self.spares, self.fork_workers, *patience)
        given = {"BATON_MODEL": self.model, "BATON_LOG_LEVEL": self.log_level}
        return System(folder, port, crew, front, given)


async def run(options: Chaos, system: System, console: Console) -> Report:
    """Load and faults side by side."""
    report, chance = Report(system.faults), random.Random(options.seed)
    counts = JobCounts(options.batch_lines, options.background, options.tool_calls)
    jobs = Jobs(system.url, "chaos", counts, options.seed)
    # Every request has a connection of its own, as if it came from another client: so gateways
    # that share a port share the load.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=system.url, timeout=5.0, limits=limits) as client:
        oracle = await _oracle(options, client)
        await jobs.learn()
        until = time.monotonic() + options.seconds
        working = asyncio.create_task(jobs.run(oracle, until))
        hurting = asyncio.create_task(_hurt(options, system, chance, until, console))
        async for outcome in load(client, "chaos", oracle, options.streams, until, options.seed):
            report.outcomes.append(outcome)
        await hurting
        report.jobs = await working
        await jobs.close()
    report.leaked = await asyncio.to_thread(system.leaked)
    report.handoffs = await asyncio.to_thread(system.handoffs)
    return report


async def _oracle(options: Chaos, client: httpx.AsyncClient) -> Oracle:
    if not options.real:
        return hashes(options.vocab)
    return await answers(client, "chaos", options.vocab, _KNOWN * options.streams)


async def _hurt(
    options: Chaos, system: System, chance: random.Random, until: float, console: Console
) -> None:
    # At fixed moments: of a slow machine as many are asked for as of a fast one.
    moment = until - options.seconds + options.every
    while moment < until:
        await asyncio.sleep(moment - time.monotonic())
        moment += options.every
        fault = system.hurt(chance, options.kinds)
        if fault is not None:
            console.print(f"{until - time.monotonic():6.1f} s left: {fault}")


def chaos(options: Chaos, console: Console) -> Report:
    """One run in a folder of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="baton-") as folder,
        options.system(Path(folder), free_port()) as system,
    ):
        system.ready()
        return asyncio.run(run(options, system, console))


def main() -> None:
    """Read the flags, run, print the tables. Exit code 1 when anything was lost."""
    console = Console(width=max(120, Console().width))
    try:
        options = Chaos.load(sys.argv[1:])
        report = chaos(options, console)
    except BatonError as error:
        sys.exit(error.message)
    shown = (report.table(), report.worst(), report.summary())
    console.print(*shown, *report.details, sep="\n")
    sys.exit(report.broken > 0)


if __name__ == "__main__":
    main()
