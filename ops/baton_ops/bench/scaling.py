"""`baton bench scaling [MODEL]`: measures the cost per token over load, context and workers.

Starts a server for each number of workers, or measures a running one (`--url`; without the curve of
workers). All loops are closed. Prints a table and a summary per curve, writes JSON and a plot with
the knees as defined by `baton_ops.bench.knee`.
"""

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
from pydantic import Field
from pydantic_settings import CliPositionalArg
from rich.console import Console
from rich.table import Table

from baton.errors import BatonError, SettingsError
from baton.process.lifecycle import fail
from baton.settings import DEFAULT_MODEL, Settings
from baton_ops.bench import machine
from baton_ops.bench.knee import FACTOR, Curve
from baton_ops.bench.load_generator import Target, first_model
from baton_ops.bench.progress import ProgressBars
from baton_ops.bench.prompts import prompts_for
from baton_ops.bench.server import served
from baton_ops.bench.sweep import (
    Point,
    Sweep,
    Usual,
    ascending,
)
from baton_ops.server_url import ServerUrl

Name = Literal["concurrency", "context", "workers"]
Level = Annotated[int, Field(ge=1, le=1_000_000)]

_MAX_CONNECTIONS = 1024


@dataclass(frozen=True)
class Size:
    """Default levels and lengths of a benchmark size."""

    concurrency: tuple[int, ...]
    contexts: tuple[int, ...]
    workers: tuple[int, ...]
    output_len: int
    rounds: int


SIZES = {
    "quick": Size((1, 2, 4, 8, 16, 32), (128, 256, 512, 1024, 2048), (1, 2), 16, 1),
    "full": Size(
        (1, 2, 4, 8, 16, 32, 64, 128), (128, 256, 512, 1024, 2048, 4096, 8192), (1, 2), 64, 2
    ),
}


class Scaling(Settings, prefix="bench_scaling"):
    """Measure the cost per token over load, context and workers, and find the knee of each
    curve."""

    model: CliPositionalArg[str] = DEFAULT_MODEL
    """Model to serve: a directory, .gguf file, org/name[@revision], or pypi://package/file."""
    url: ServerUrl = ""
    """URL of a running OpenAI-compatible server; empty starts one."""
    key: str = ""
    """API key, if the server wants one."""
    size: Literal["quick", "full"] = "full"
    """quick is a sanity check; full is for published figures."""
    curves: tuple[Name, ...] = Field(default=("concurrency", "context", "workers"), min_length=1)
    """Curves to measure."""
    concurrency: tuple[Level, ...] = ()
    """Numbers of requests in flight, ascending; empty takes those of `size`."""
    contexts: tuple[Level, ...] = ()
    """Prompt lengths in tokens, ascending, one request at a time; clipped to the model's longest.
    Empty takes those of `size`."""
    workers: tuple[Level, ...] = ()
    """Numbers of workers on this machine, ascending; empty takes those of `size`."""
    input_len: int = Field(default=128, ge=1)
    """Prompt length in tokens, except for the curve of contexts."""
    output_len: int = Field(default=0, ge=0)
    """Output length in tokens, at least 2; 0 takes that of `size`."""
    rounds: int = Field(default=0, ge=0)
    """Requests per slot of a closed loop; 0 takes that of `size`."""
    in_flight: int = Field(default=16, ge=1, le=1024)
    """Requests in flight per worker, for the curve of workers."""
    start_seconds: float = Field(default=900.0, gt=0)
    """How long the server may take to load its model."""
    seed: int = 0
    """Seed of prompts."""
    out: Path = Path("bench")
    """Folder for the JSON, the plot and the servers' output."""
    serve_args: str = ""
    """Further flags for the server that is started, separated by spaces."""

    def levels(self, name: Name) -> tuple[int, ...]:
        """Return the levels of one curve. Raises `SettingsError` when they are invalid."""
        size = SIZES[self.size]
        field: dict[Name, tuple[tuple[int, ...], tuple[int, ...]]] = {
            "concurrency": (self.concurrency, size.concurrency),
            "context": (self.contexts, size.contexts),
            "workers": (self.workers, size.workers),
        }
        configured, default = field[name]
        return ascending(configured or default, name)

    @property
    def usual(self) -> Usual:
        """Return the common request parameters. Two output tokens are the fewest with a time
        between."""
        size = SIZES[self.size]
        answer = max(2, self.output_len or size.output_len)
        return Usual(self.input_len, answer, self.rounds or size.rounds, self.seed)


@dataclass(frozen=True)
class ServerResults:
    """Results of one server."""

    model: str
    points: dict[Name, list[Point]]


async def measure(
    options: Scaling, url: str, curves: Sequence[Name], workers: int, console: Console
) -> ServerResults:
    """Measure the given curves; for workers, only the point of this server."""
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    limits, timeout = httpx.Limits(max_connections=_MAX_CONNECTIONS), httpx.Timeout(None, connect=9)
    async with httpx.AsyncClient(
        base_url=url, headers=headers, limits=limits, timeout=timeout
    ) as client:
        target = Target(client, await first_model(client), "completions")
        prompts = await prompts_for(target, options.seed)
        console.print(f"[bold]{target.model}[/] at {url}, prompts of {prompts.kind}")
        points: dict[Name, list[Point]] = {}
        with ProgressBars(console) as bars:
            sweep = Sweep(target, prompts, bars, options.usual)
            await sweep.warm_up()
            if "concurrency" in curves:
                points["concurrency"] = await sweep.loads(options.levels("concurrency"))
            if "context" in curves:
                levels, longest = options.levels("context"), await _longest(client)
                points["context"] = await sweep.contexts(levels, longest)
            if "workers" in curves:
                flight = workers * options.in_flight
                points["workers"] = [await sweep.load(workers, f"{workers} workers", flight)]
        return ServerResults(target.model, points)


async def _longest(client: httpx.AsyncClient) -> int | None:
    """Return the longest sequence in tokens, if the server reports it."""
    longest = (await client.get("/v1/models")).json()["data"][0].get("max_model_len")
    return int(longest) if longest else None


def all_points(options: Scaling, stem: Path, console: Console) -> ServerResults:
    """Measure every curve, with a new server for each number of workers."""
    points: dict[Name, list[Point]] = defaultdict(list)
    model = ""
    for turn, workers in enumerate(_fleets(options)):
        names = [name for name in options.curves if name == "workers" or turn == 0]
        with _server(options, workers, stem) as url:
            server_results = asyncio.run(measure(options, url, names, workers, console))
        model = server_results.model
        for name, more in server_results.points.items():
            points[name] += more
    return ServerResults(model, points)


def _fleets(options: Scaling) -> tuple[int, ...]:
    """Return the numbers of workers in turn. Curves that need only one server use the first."""
    if "workers" not in options.curves:
        return (1,)
    if options.url:
        raise SettingsError(
            "The curve 'workers' starts servers of its own. Name the others: "
            "--curves concurrency,context"
        )
    return options.levels("workers")


@contextmanager
def _server(options: Scaling, workers: int, stem: Path) -> Iterator[str]:
    if options.url:
        yield options.url.rstrip("/")
        return
    flags = [*options.serve_args.split(), "--workers", str(workers)]
    log = stem.with_suffix(f".{workers}.server.log")
    with served(options.model, flags, log, options.start_seconds) as url:
        yield url


SERVER, STREAM, PROMPT = "ms of the server", "ms between two tokens", "ms per token of the prompt"


def curves(options: Scaling, points: dict[Name, list[Point]]) -> list[Curve]:
    """Convert the points to costs.

    With n requests in flight, a server produces n tokens in the time of one: the server's cost per
    token falls with n, while the stream's latency rises.
    """
    cores = machine.facts()["cores"]
    described: dict[Name, tuple[str, str, str]] = {
        "concurrency": ("Load", "requests in flight", "a step takes longer with every row"),
        "context": ("Context", "tokens of context", "attention reads all keys before a token"),
        "workers": (
            f"Workers, {options.in_flight} in flight for each",
            "workers",
            f"they share {cores} cores",
        ),
    }
    return [
        Curve(
            title, axis, tuple(p.level for p in points[name]), _costs(name, points[name]), why,
            adds=name == "context",
        )
        for name, (title, axis, why) in described.items()
        if name in points
    ]  # fmt: skip


def _costs(name: Name, points: list[Point]) -> dict[str, tuple[float, ...]]:
    summaries = [point.summary for point in points]
    waits = tuple(s.tpot.median for s in summaries)
    if name == "context":
        firsts = tuple(p.summary.ttft.median / p.level for p in points)
        return {STREAM: waits, PROMPT: firsts}
    return {SERVER: tuple(1000 / s.output_throughput for s in summaries), STREAM: waits}


def table(curve: Curve) -> Table:
    """Return a table of one curve with a row per level and the knee marked."""
    grid = Table(title=f"{curve.name}: {curve.axis}", title_justify="left")
    for name in ("", *curve.costs, "tokens/s"):
        grid.add_column(name, justify="right")
    for i, level in enumerate(curve.levels):
        costs = [cost[i] for cost in curve.costs.values()]
        mark = "  < knee" if level == curve.knee else ""
        shown = [f"{cost:,.3g}" for cost in costs]
        grid.add_row(str(level), *shown, f"{1000 / costs[0]:,.1f}{mark}")
    return grid


def report(options: Scaling, server_results: ServerResults, drawn: list[Curve]) -> dict[str, Any]:
    """Return the results with everything needed to interpret them, for the JSON."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "model": server_results.model,
        "settings": options.model_dump(mode="json", include=set(Scaling.__annotations__) - {"key"}),
        "factor": FACTOR,
        "curves": [{**asdict(c), "knee": c.knee, "sentence": c.sentence} for c in drawn],
        "runs": {
            name: [asdict(point) for point in points]
            for name, points in server_results.points.items()
        },
    }


def run(options: Scaling, console: Console) -> list[Path]:
    """Measure, print and write. Returns the paths of the files."""
    from baton_ops.bench.plot import bends  # deferred: importing matplotlib takes a second

    for name in options.curves:
        options.levels(name)
    stem = options.out / datetime.now(UTC).strftime("scaling-%Y-%m-%dT%H%M%S")
    server_results = all_points(options, stem, console)
    drawn = curves(options, server_results.points)
    for curve in drawn:
        console.print(table(curve))
        console.print(curve.sentence, highlight=False)
    paths = [stem.with_suffix(".json"), stem.with_suffix(".png")]
    options.out.mkdir(parents=True, exist_ok=True)
    paths[0].write_text(json.dumps(report(options, server_results, drawn), indent=1) + "\n")
    bends(drawn, f"{server_results.model}, {machine.facts()['cpu']}", paths[1])
    console.print(f"wrote {' and '.join(map(str, paths))}", highlight=False)
    return paths


def main() -> None:
    """Measure, or print an error."""
    try:
        run(Scaling.load(sys.argv[1:]), Console())
    except BatonError as error:
        fail("baton bench scaling", error)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
