"""What a flood of one API key costs two polite ones: real services, a worker whose steps only wait.

    flood  -- so many times what the worker can do --> |
    polite -- one request a second each -------------> | gateway, tokenizer, scheduler -> worker

    python -m tests.benchmarks.overload [--times 3,8] [--seconds 8] [--step-ms 20]

The worker has 8 rows; each answer has 25 tokens, so that its capacity is 8 / (25 steps).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from pydantic import Field
from rich.console import Console
from rich.table import Table

from baton.settings import Settings, environment
from tests.chaos.wires import free_port
from tests.support.tiny_models import VOCAB_SIZE, save_tokenizer

_ROWS, _TOKENS = 8, 25
_POLITE = ("polite-1", "polite-2")
_FLOOD = "flooding"


class Overload(Settings, prefix="overload"):
    """Flood one key and measure the others."""

    times: str = "3,8"
    """How many times its capacity."""
    seconds: float = Field(default=8.0, gt=0)
    """How long each flood lasts."""
    step_ms: float = Field(default=20.0, gt=0)
    """Milliseconds of a step."""


@dataclass
class Answers:
    """What became of the requests of one key."""

    status: Counter[int] = field(default_factory=Counter)
    served: list[float] = field(default_factory=list)
    """Seconds of the answers."""
    refused: list[float] = field(default_factory=list)
    """Seconds until a refusal."""

    def seconds(self, share: float, of: list[float]) -> str:
        """A quantile, for people."""
        return f"{sorted(of)[int(share * (len(of) - 1))]:.2f} s" if of else "-"


def services(folder: Path, port: int, step_ms: float) -> list[list[str]]:
    """Command lines of the processes."""
    keys = folder / "keys"
    keys.write_text("\n".join(f'[[key]]\nname = "{n}"\nkey = "{n}"' for n in (*_POLITE, _FLOOD)))
    model = save_tokenizer(folder / "model")
    sizes = {"architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB_SIZE, "eos_token_id": 1}
    (model / "config.json").write_text(json.dumps(sizes))
    run = ["--run-dir", str(folder / "run")]
    named = ["--model", str(model), "--served-model-name", "fake"]
    worker = ["--step-ms", str(step_ms), "--max-num-seqs", str(_ROWS)]
    worker += ["--vocab-size", str(VOCAB_SIZE), "--num-pages", "4096"]
    baton = [sys.executable, "-m", "baton"]
    return [
        [*baton, "scheduler", *run],
        [*baton, "tokenizer", *run, *named],
        [*baton, "gateway", *run, "--port", str(port), "--api-key-file", str(keys)],
        [sys.executable, "-m", "tests.fakes.hash_worker", *run, *worker],
    ]


async def ask(client: httpx.AsyncClient, key: str, into: Answers) -> None:
    """One request."""
    body = {"model": "fake", "prompt": "the baton", "max_tokens": _TOKENS, "ignore_eos": True}
    headers, started = {"authorization": f"Bearer {key}"}, time.monotonic()
    answer = await client.post("/v1/completions", json=body, headers=headers)
    into.status[answer.status_code] += 1
    took = time.monotonic() - started
    (into.served if answer.status_code == 200 else into.refused).append(took)


async def load(client: httpx.AsyncClient, key: str, rate: float, seconds: float) -> Answers:
    """Open loop: `rate` requests a second, whatever becomes of them; then all is waited for, or
    given up when the polite are done."""
    answers, tasks, started = Answers(), list[asyncio.Task[None]](), time.monotonic()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
        tasks.append(asyncio.create_task(ask(client, key, answers)))
    done, late = await asyncio.wait(tasks, timeout=5.0)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    for task in done:
        task.result()
    return answers


async def measure(url: str, config: Overload) -> Table:
    """All floods, one after the other."""
    capacity = _ROWS / (_TOKENS * config.step_ms / 1000)
    table = Table(title=f"capacity {capacity:.0f} requests/s, {config.seconds:g} s each")
    for name in ("flood", "key", "answered", "refused", "p50", "p99", "refused in, p99"):
        table.add_column(name)
    limits = httpx.Limits(max_connections=None)
    for times in (0.0, *map(float, config.times.split(","))):
        async with httpx.AsyncClient(base_url=url, timeout=120.0, limits=limits) as client:
            loads = [load(client, key, 1.0, config.seconds) for key in _POLITE]
            if times:
                loads.append(load(client, _FLOOD, times * capacity, config.seconds))
            found = await asyncio.gather(*loads)
        for key, one in zip((*_POLITE, _FLOOD), found, strict=False):
            refused = ", ".join(f"{n} x {s}" for s, n in sorted(one.status.items()) if s != 200)
            quantiles = [one.seconds(share, one.served) for share in (0.5, 0.99)]
            late = one.seconds(0.99, one.refused)
            table.add_row(f"{times:g}x", key, str(one.status[200]), refused, *quantiles, late)
    return table


def ready(url: str) -> None:
    """Wait for the first answer."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if httpx.get(f"{url}/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit("the services do not come up")


def main() -> None:
    """Run it and print a table."""
    config = Overload.load(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="baton-") as name, ExitStack() as stack:
        folder, port = Path(name), free_port()
        (folder / "run").mkdir(mode=0o700)
        for command in services(folder, port, config.step_ms):
            process = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
        url = f"http://127.0.0.1:{port}"
        ready(url)
        Console().print(asyncio.run(measure(url, config)))


if __name__ == "__main__":
    main()
