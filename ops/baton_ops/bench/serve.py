"""`baton bench [MODEL]`: benchmarks a running server (`--url`) or one that it starts.

Closed loops keep a number of requests in flight; open loops send requests as a Poisson process, at
given rates or at fractions of the closed loop's best rate. Prints a table, writes JSON and a plot.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import httpx
from pydantic import Field
from pydantic_settings import CliPositionalArg
from rich.console import Console

from baton.errors import BatonError, SettingsError, Unavailable
from baton.process.lifecycle import fail
from baton.settings import DEFAULT_MODEL, Settings
from baton_ops.bench import machine
from baton_ops.bench.images import Images
from baton_ops.bench.load_generator import (
    Endpoint,
    Request,
    Target,
    arrivals,
    closed_loop,
    first_model,
    open_loop,
)
from baton_ops.bench.progress import ProgressBars
from baton_ops.bench.prompts import (
    Lengths,
    Prompts,
    Shape,
    prompts_for,
    requests,
)
from baton_ops.bench.server import served
from baton_ops.bench.summary import Summary, summarise, table
from baton_ops.server_url import ServerUrl

_MAX_CONNECTIONS = 1024
_MAX_REQUESTS = 10_000


class Bench(Settings, prefix="bench"):
    """Benchmark a server with closed and open loops, fixed and mixed lengths."""

    model: CliPositionalArg[str] = DEFAULT_MODEL
    """Model to serve: a directory, .gguf file, org/name[@revision], or pypi://package/file."""
    url: ServerUrl = ""
    """URL of a running OpenAI-compatible server; empty starts one."""
    key: str = ""
    """API key, if the server wants one."""
    endpoint: Endpoint = "completions"
    """Endpoint to use: completions sends token ids, chat applies the chat template."""
    shapes: tuple[Shape, ...] = Field(default=("fixed", "mixed"), min_length=1)
    """Lengths: fixed ones, or drawn from a log-normal distribution around them."""
    input_len: int = Field(default=128, ge=1)
    """Tokens of a prompt."""
    output_len: int = Field(default=128, ge=1)
    """Tokens of an answer."""
    images: int = Field(default=0, ge=0, le=64)
    """Images of a request, before its text. They need `--endpoint chat`."""
    image_width: int = Field(default=512, ge=1, le=8192)
    """Pixels."""
    image_height: int = Field(default=512, ge=1, le=8192)
    """Pixels."""
    image_variety: int = Field(default=0, ge=0)
    """Number of different images; 0 means that every one is new, so that no cache contains it."""
    concurrency: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = Field(
        default=(1, 8, 32), min_length=1
    )
    """Numbers of requests in flight of the closed loops; mixed lengths use the last."""
    rounds: int = Field(default=3, ge=1)
    """Requests per slot of a closed loop."""
    rates: tuple[Annotated[float, Field(gt=0, le=10_000)], ...] = ()
    """Arrivals per second of the open loops; empty derives them from `loads`."""
    loads: tuple[Annotated[float, Field(gt=0, le=10)], ...] = (0.5, 0.8)
    """Open loops at these fractions of the most requests per second that a closed loop reached."""
    run_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Seconds after which a run sends no more requests."""
    start_seconds: float = Field(default=900.0, gt=0)
    """How long the server may take to load its model."""
    seed: int = 0
    """Seed of prompts, lengths and arrivals."""
    out: Path = Path("bench")
    """Folder for the JSON, the plot and the server's output."""
    serve_args: str = ""
    """Further flags for the server that is started, separated by spaces."""


@dataclass(frozen=True)
class Run:
    """One measurement: `concurrency` for a closed loop, `rate` for an open one."""

    shape: Shape
    summary: Summary
    concurrency: int | None = None
    rate: float | None = None
    gap_ms: float | None = None
    """Mean idle time between steps over the last steps of the run, of the worker with the longest;
    None if the server does not report it."""

    @property
    def name(self) -> str:
        """Column title."""
        return _title(self.shape, self.concurrency, self.rate)


def _title(shape: Shape, concurrency: int | None, rate: float | None) -> str:
    return f"{shape} x{concurrency}" if rate is None else f"{shape} {rate:.2f}/s"


class Session:
    """Runs against one server with common settings and progress bars."""

    def __init__(
        self, options: Bench, target: Target, prompts: Prompts, bars: ProgressBars
    ) -> None:
        self._options = options
        self._target = target
        self._prompts = prompts
        self._bars = bars
        size = (options.image_width, options.image_height)
        self._images = Images(options.images, size, options.image_variety, options.seed)
        self._num_runs = 0

    async def all(self) -> list[Run]:
        """Perform every run in sequence."""
        runs: list[Run] = []
        await self._warm_up()
        for shape in self._options.shapes:
            levels = self._options.concurrency
            closed = [await self._closed(shape, n) for n in (levels if not runs else levels[-1:])]
            runs += closed
            runs += [await self._open(shape, rate) for rate in self._rates(closed)]
        return runs

    def _rates(self, closed: list[Run]) -> list[float]:
        if self._options.rates:
            return list(self._options.rates)
        capacity = max((run.summary.request_throughput for run in closed), default=0.0)
        return [load * capacity for load in self._options.loads if capacity > 0]

    def _lengths(self, shape: Shape) -> Lengths:
        return Lengths(shape, self._options.input_len, self._options.output_len)

    async def _warm_up(self) -> None:
        """Send unmeasured requests, so that lazy initialisation is not measured."""
        ready = self._requests("fixed", 2, self._seed())
        outcomes = await closed_loop(
            self._target, ready, 2, self._options.run_seconds, lambda outcome: None
        )
        if all(outcome.error for outcome in outcomes):
            raise Unavailable(f"The server answers no request: {outcomes[0].error}")

    def _requests(self, shape: Shape, count: int, seed: int) -> list[Request]:
        return requests(self._prompts, self._lengths(shape), count, seed, self._images)

    def _seed(self) -> int:
        """Return a new seed per run; the sequence is the same in every session."""
        self._num_runs += 1
        return self._options.seed * 1000 + self._num_runs

    async def _closed(self, shape: Shape, concurrency: int) -> Run:
        count = min(concurrency * self._options.rounds, _MAX_REQUESTS)
        seconds = self._options.run_seconds
        requests = self._requests(shape, count, self._seed())
        with self._bars.bar(_title(shape, concurrency, None), count) as done:
            outcomes = await closed_loop(self._target, requests, concurrency, seconds, done)
        gap = await self._gap()
        return Run(shape, summarise(outcomes), concurrency=concurrency, gap_ms=gap)

    async def _open(self, shape: Shape, rate: float) -> Run:
        seed, seconds = self._seed(), self._options.run_seconds
        times = arrivals(rate, seconds, seed)[:_MAX_REQUESTS] or [0.0]
        requests = self._requests(shape, len(times), seed)
        with self._bars.bar(_title(shape, None, rate), len(times)) as done:
            outcomes = await open_loop(self._target, requests, times, seconds, done)
        return Run(shape, summarise(outcomes), rate=rate, gap_ms=await self._gap())

    async def _gap(self) -> float | None:
        workers = await _fleet(self._target.client)
        return max((w["gap_ms"] for w in workers if "gap_ms" in w), default=None)


@dataclass(frozen=True)
class Measured:
    """Results of `measure`."""

    model: str
    workers: list[dict[str, Any]]
    runs: list[Run]


async def measure(options: Bench, url: str, console: Console) -> Measured:
    """Perform all runs against the server at `url`."""
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    limits = httpx.Limits(max_connections=_MAX_CONNECTIONS)
    timeout = httpx.Timeout(None, connect=10.0)  # Every request has its own deadline.
    async with httpx.AsyncClient(
        base_url=url, headers=headers, limits=limits, timeout=timeout
    ) as client:
        target = Target(client, await first_model(client), options.endpoint)
        prompts = await prompts_for(target, options.seed)
        console.print(f"[bold]{target.model}[/] at {url}, prompts of {prompts.kind}")
        with ProgressBars(console) as bars:
            runs = await Session(options, target, prompts, bars).all()
        return Measured(target.model, await _workers(client), runs)


async def _workers(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    """Return device and number format of the workers; empty if the server does not report them."""
    fields = ("name", "device", "dtype", "pages_total", "weight_bytes", "kv_bytes")
    return [{key: w.get(key) for key in fields} for w in await _fleet(client)]


async def _fleet(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    """Return the server's worker statistics; empty for servers other than Baton."""
    answer = await client.get("/fleet")
    if answer.status_code != 200:
        return []
    workers: list[dict[str, Any]] = answer.json().get("workers", [])
    return workers


def show(runs: list[Run], console: Console) -> None:
    """Print the table at full width and the errors, even without a terminal."""
    grid = table([(run.name, run.summary) for run in runs])
    gaps = [run.gap_ms for run in runs]
    if any(gap is not None for gap in gaps):
        grid.add_section()
        grid.add_row("Gap between steps (ms)", *("-" if g is None else f"{g:.3f}" for g in gaps))
    wide = Console(file=console.file, width=max(console.width, 44 + 15 * len(runs)))
    wide.print(grid)
    for run in runs:
        for error, count in run.summary.errors.items():
            console.print(f"[red]{run.name}: {count} x {error}[/]", highlight=False)


def report(options: Bench, measured: Measured) -> dict[str, Any]:
    """Return the results with everything needed to interpret them, for the JSON."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "model": measured.model,
        "workers": measured.workers,
        "settings": options.model_dump(mode="json", include=set(Bench.__annotations__) - {"key"}),
        "runs": [{"name": run.name, **asdict(run)} for run in measured.runs],
    }


def write(options: Bench, measured: Measured, stem: Path) -> list[Path]:
    """Write the JSON and the plot of the closed loops of the first shape. Returns the paths."""
    from baton_ops.bench.plot import draw  # Deferred: importing matplotlib takes a second.

    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_suffix(".json"), stem.with_suffix(".png")]
    data = report(options, measured)
    paths[0].write_text(json.dumps(data, indent=1) + "\n")
    first = [run for run in measured.runs if run.shape == options.shapes[0]]
    points = [(run.concurrency, run.summary) for run in first if run.concurrency is not None]
    lengths = f"{options.input_len} in, {options.output_len} out"
    title = f"{measured.model}, {lengths} ({options.shapes[0]}), {data['machine']['cpu']}"
    draw(sorted(points, key=lambda point: point[0]), title, paths[1])
    return paths


@contextmanager
def _server(options: Bench, stem: Path) -> Iterator[str]:
    if options.url:
        yield options.url.rstrip("/")
        return
    log = stem.with_suffix(".server.log")
    with served(options.model, options.serve_args.split(), log, options.start_seconds) as url:
        yield url


def run(options: Bench, console: Console) -> list[Path]:
    """Measure, print and write. Returns the paths of the files. Raises `SettingsError` for images
    at an endpoint that does not accept them."""
    if options.images and options.endpoint != "chat":
        raise SettingsError("Images stand in chats: use --endpoint chat.")
    stem = options.out / datetime.now(UTC).strftime("%Y-%m-%dT%H%M%S")
    with _server(options, stem) as url:
        measured = asyncio.run(measure(options, url, console))
    show(measured.runs, console)
    paths = write(options, measured, stem)
    console.print(f"wrote {' and '.join(map(str, paths))}", highlight=False)
    return paths


def main() -> None:
    """Measure, or print an error."""
    try:
        options = Bench.load(sys.argv[1:])
        run(options, Console())
    except BatonError as error:
        fail("baton bench", error)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
