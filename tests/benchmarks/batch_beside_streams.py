"""What a batch costs the streams beside it: the real model, one worker, in turns.

alone, beside a batch, alone, beside a batch ... -> gaps between tokens of the streams

python -m tests.benchmarks.batch_beside_streams [--turns 3] [--seconds 15] [--streams 2]
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
from openai import AsyncOpenAI
from pydantic import Field
from rich.console import Console
from rich.table import Table

from baton.settings import Settings
from baton_ops.bench.server import served

_LINES = 2000
"""More than any run answers."""


class Beside(Settings, prefix="beside"):
    """Streams with and without a batch beside them."""

    turns: int = Field(default=3, ge=1)
    """Measurements of each."""
    seconds: float = Field(default=15.0, gt=0)
    """How long each takes."""
    streams: int = Field(default=2, ge=1)
    """Streams at a time."""


async def stream(client: httpx.AsyncClient, until: float, number: int) -> list[float]:
    """Answers one after the other; returns the gaps between their events, in seconds."""
    gaps = list[float]()
    while time.monotonic() < until:
        body = {
            "model": "beside",
            "prompt": f"Story {number}. Once upon a time",
            "max_tokens": 200,
            "ignore_eos": True,
            "stream": True,
        }
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            heard = 0.0
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    now = time.monotonic()
                    gaps += [now - heard] if heard else []
                    heard = now
    return gaps


async def gaps_of(url: str, config: Beside) -> list[float]:
    """Gaps of all streams for one turn."""
    until = time.monotonic() + config.seconds
    async with httpx.AsyncClient(base_url=url, timeout=60.0) as client:
        every = [stream(client, until, number) for number in range(config.streams)]
        return [gap for gaps in await asyncio.gather(*every) for gap in gaps]


async def beside_batch(url: str, config: Beside) -> tuple[list[float], int]:
    """Gaps beside a batch, and how many of its lines were answered meanwhile."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        body = {"model": "beside", "prompt": "The moral is", "max_tokens": 50, "ignore_eos": True}
        lines = [
            {"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": body}
            for n in range(_LINES)
        ]
        file = "\n".join(map(json.dumps, lines)).encode()
        upload = await client.files.create(file=("lines.jsonl", file), purpose="batch")
        batch = await client.batches.create(
            input_file_id=upload.id, endpoint="/v1/completions", completion_window="24h"
        )
        await asyncio.sleep(3.0)
        before = (await client.batches.retrieve(batch.id)).request_counts
        gaps = await gaps_of(url, config)
        after = (await client.batches.cancel(batch.id)).request_counts
        while (await client.batches.retrieve(batch.id)).status != "cancelled":
            await asyncio.sleep(0.5)
    assert before is not None and after is not None
    return gaps, after.completed - before.completed


def quantile(values: Sequence[float], share: float) -> float:
    """A quantile, in milliseconds."""
    return 1e3 * sorted(values)[int(share * (len(values) - 1))]


async def measure(url: str, config: Beside) -> Table:
    """All turns."""
    alone, beside, lines = list[float](), list[float](), 0
    for _ in range(config.turns):
        alone += await gaps_of(url, config)
        gaps, answered = await beside_batch(url, config)
        beside, lines = beside + gaps, lines + answered
    table = Table(title=f"{config.streams} streams, {lines} lines of a batch answered beside them")
    for name in ("gap", "alone", "beside a batch", "ratio"):
        table.add_column(name, justify="right")
    for share in (0.5, 0.9, 0.99):
        own, other = quantile(alone, share), quantile(beside, share)
        name = f"p{100 * share:.0f}"
        table.add_row(name, f"{own:.1f} ms", f"{other:.1f} ms", f"{other / own:.2f}")
    return table


def main() -> None:
    """Run it and print a table."""
    config = Beside.load(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="baton-") as folder:
        name = ["--served-model-name", "beside"]
        with served(config.model, name, Path(folder) / "log", 300.0) as url:
            Console().print(asyncio.run(measure(url, config)))


if __name__ == "__main__":
    main()
