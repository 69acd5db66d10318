"""`make chaos`: break processes at random under load, and compare every token.

make chaos SECONDS=600 STREAMS=64 EVERY=5
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import tempfile
import time
from pathlib import Path

import httpx
from pydantic import Field
from rich.console import Console

from baton.errors import BatonError
from baton.settings import Settings
from tests.chaos.report import Report
from tests.chaos.streams import load
from tests.chaos.system import System


class Chaos(Settings, prefix="chaos"):
    """Break processes at random under load."""

    seconds: float = Field(default=60.0, gt=0)
    """How long."""
    streams: int = Field(default=32, ge=1)
    """Streams at a time."""
    every: float = Field(default=5.0, gt=0)
    """Seconds between two faults."""
    vocab: int = 49152
    """Tokens of the model's vocabulary: its tokenizer is real, its weights are not used."""
    workers: int = Field(default=3, ge=1)
    """Fake workers."""
    step_ms: float = 20.0
    """Milliseconds that one of their steps takes."""
    seed: int = 0
    """Of the faults and the requests."""


async def run(options: Chaos, system: System, console: Console) -> Report:
    """Load and faults side by side."""
    report, chance = Report(hurts=system.hurts), random.Random(options.seed)
    until = time.monotonic() + options.seconds
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=system.url, timeout=5.0, limits=limits) as client:
        outcomes = load(client, "chaos", options.vocab, options.streams, until, options.seed)
        hurting = asyncio.create_task(_hurt(options, system, chance, until, console))
        async for outcome in outcomes:
            report.add(outcome)
        await hurting
    report.leaked = system.leaked()
    return report


async def _hurt(
    options: Chaos, system: System, chance: random.Random, until: float, console: Console
) -> None:
    while time.monotonic() + options.every < until:
        await asyncio.sleep(options.every)
        console.print(f"{until - time.monotonic():6.1f} s left: {system.hurt(chance)}")


def chaos(options: Chaos, console: Console) -> Report:
    """One run in a folder of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (
        tempfile.TemporaryDirectory(prefix="baton-") as folder,
        System(
            Path(folder), options.model, options.vocab, port, options.workers, options.step_ms
        ) as system,
    ):
        system.ready()
        return asyncio.run(run(options, system, console))


def main() -> None:
    """Read the flags, run, print the table. Exit code 1 when anything was lost."""
    console = Console()
    try:
        options = Chaos.load(sys.argv[1:])
        report = chaos(options, console)
    except BatonError as error:
        sys.exit(error.message)
    console.print(report.table(), *report.details, sep="\n")
    sys.exit(report.broken > 0)


if __name__ == "__main__":
    main()
