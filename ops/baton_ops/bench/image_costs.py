"""`baton bench images MODEL`: measures the cost of images, as ratios.

    repeated   first token with images that were sent before, over that with new ones
    storm      99th percentile of the pauses of text streams during new images, over that without
    encoders   first token of several new images with two encode workers, over that with one: as it
               is here, and simulated as if each worker had processors of its own

Starts a server for each fleet. Prints tables, writes JSON, and with `--record` adds the tables to
the records from which docs/performance.md is generated.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Literal

import httpx
import msgspec
from pydantic import Field
from pydantic_settings import CliPositionalArg
from rich.console import Console
from rich.table import Table as Grid

from baton.errors import BatonError
from baton.process.lifecycle import fail
from baton.settings import DEFAULT_MODEL, Settings
from baton_ops.bench import machine, record
from baton_ops.bench.image_runs import ImageRuns, Load
from baton_ops.bench.load_generator import Target, first_model
from baton_ops.bench.page import text_of
from baton_ops.bench.prompts import prompts_for
from baton_ops.bench.record import Table
from baton_ops.bench.server import served

Figure = Literal["repeated", "storm", "encoders"]


class ImageCosts(Settings, prefix="bench_images"):
    """Measure what images cost a server."""

    model: CliPositionalArg[str] = DEFAULT_MODEL
    """Vision-language model: a directory, org/name[@revision], or pypi://package/file."""
    figures: tuple[Figure, ...] = Field(default=("repeated", "storm", "encoders"), min_length=1)
    """Measurements to run."""
    images: int = Field(default=4, ge=1, le=64)
    """Images per request, for `encoders`; the others have one."""
    image_width: int = Field(default=512, ge=1, le=8192)
    """Width in pixels."""
    image_height: int = Field(default=512, ge=1, le=8192)
    """Height in pixels."""
    requests: int = Field(default=8, ge=1)
    """Requests, or pairs of them, of `repeated` and `encoders`."""
    rounds: int = Field(default=2, ge=1)
    """Rounds in which `storm` measures text streams without and with images."""
    streams: int = Field(default=4, ge=1, le=1024)
    """Text streams of `storm`."""
    storm: int = Field(default=2, ge=1, le=1024)
    """Requests with an image that `storm` keeps in flight."""
    max_itl_ms: float = Field(default=25.0, gt=0)
    """Scheduler setting of one fleet of `storm`, in milliseconds."""
    input_len: int = Field(default=32, ge=1)
    """Text tokens of a request."""
    output_len: int = Field(default=128, ge=2)
    """Output tokens of a text stream."""
    start_seconds: float = Field(default=900.0, gt=0)
    """How long a server may take to load its model."""
    seed: int = 0
    """Seed of images and prompts."""
    out: Path = Path("bench")
    """Folder for the JSON and the servers' output."""
    record: Path | None = None
    """Folder of the records, docs/benchmarks, to add the tables to."""
    machine: str = "unnamed"
    """Name of this machine in the record."""
    serve_args: str = ""
    """Further flags for the servers, separated by spaces."""

    @property
    def request_load(self) -> Load:
        """Request parameters."""
        size = (self.image_width, self.image_height)
        return Load(self.input_len, self.output_len, size, self.seed)


def fleets(options: ImageCosts) -> dict[str, tuple[str, ...]]:
    """Workers of the fleet and their flags."""
    encode = ("--encode", "1")
    bound = f"{options.max_itl_ms:g}"
    return {
        "1": (),
        "1, and 1 to encode": encode,
        f"1 with --max-itl-ms {bound}, and 1 to encode": (*encode, "--max-itl-ms", bound),
        "1 to prefill, 1 to decode, 1 to encode": (*encode, "--prefill", "1", "--decode", "1"),
    }


Measure = Callable[[ImageRuns], Coroutine[Any, Any, Any]]


def _run(options: ImageCosts, stem: Path, name: str, flags: tuple[str, ...], call: Measure) -> Any:
    """Run a measurement on a server with these flags."""

    async def measured(url: str) -> Any:
        timeout = httpx.Timeout(None, connect=10.0)
        async with httpx.AsyncClient(base_url=url, timeout=timeout) as client:
            target = Target(client, await first_model(client), "chat")
            runs = ImageRuns(target, await prompts_for(target, options.seed), options.request_load)
            await runs.warm_up()
            return await call(runs)

    log = stem.with_suffix(f".{name}.server.log")
    flags_of_server = [*options.serve_args.split(), *flags]
    with served(options.model, flags_of_server, log, options.start_seconds) as url:
        return asyncio.run(measured(url))


def _repeated(options: ImageCosts, stem: Path) -> Table:
    repeated = _run(options, stem, "repeated", (), lambda runs: runs.repeated(options.requests, 1))
    medians = (1000 * median(repeated.cold), 1000 * median(repeated.warm))
    return Table(
        question="images",
        title="First token with a known image",
        command="baton bench images MODEL --figures repeated",
        columns=("image", "new (ms)", "known (ms)", "ratio", "encoder runs for known ones"),
        decimals=2,
        rows=((_size(options), *medians, repeated.ratio, repeated.encoder_runs),),
    )


def _storm(options: ImageCosts, stem: Path) -> Table:
    rows = list[tuple[record.Cell, ...]]()
    for number, (workers, flags) in enumerate(fleets(options).items()):
        storm = _run(
            options, stem, f"storm-{number}", flags,
            lambda runs: runs.storm(options.rounds, options.streams, options.storm),
        )  # fmt: skip
        alone, beside = storm.p99
        rows.append((workers, 1000 * alone, 1000 * beside, beside / alone, storm.images_per_second))
    return Table(
        question="images",
        title=f"Pauses of {options.streams} text streams, 99th percentile",
        command="baton bench images MODEL --figures storm",
        columns=("workers", "alone (ms)", "beside images (ms)", "ratio", "images/s"),
        decimals=2,
        rows=tuple(rows),
    )


def simulate(events: Path, encode_workers: int) -> Any:
    """Simulate a recording as it was and with this number of encode workers. The simulator is
    imported by name: operator tools do not depend on services."""
    simulator = import_module("baton_scheduler.replay.simulator")
    return simulator.compare(events, encode_workers=encode_workers)


def _encoders(options: ImageCosts, stem: Path) -> Table:
    events = stem.with_suffix(".events")
    recorded = ("--scheduler.event-log", str(events.absolute()))
    measured = [
        _run(
            options, stem, f"encoders-{count}", ("--encode", str(count), *flags),
            lambda runs: runs.cold(options.requests, options.images),
        )
        for count, flags in ((1, recorded), (2, ()))
    ]  # fmt: skip
    simulated = simulate(events, encode_workers=2).waits
    rows = [
        (how, str(count), 1000 * median(times[-options.requests :]))
        for how, both in (("measured", measured), ("simulated", simulated))
        for count, times in enumerate(both, 1)
    ]
    firsts = {how: time for how, count, time in rows if count == "1"}
    return Table(
        question="images",
        title=f"First token of {options.images} new images",
        command="baton bench images MODEL --figures encoders",
        columns=("", "encode workers", "time (ms)", "ratio to one"),
        decimals=2,
        rows=tuple((*row, row[-1] / firsts[row[0]]) for row in rows),
    )


def _size(options: ImageCosts) -> str:
    return f"{options.image_width} x {options.image_height}"


_FIGURES: dict[Figure, Callable[[ImageCosts, Path], Table]] = {
    "repeated": _repeated,
    "storm": _storm,
    "encoders": _encoders,
}


def grid(table: Table) -> Grid:
    """A table for the terminal."""
    shown = Grid(title=table.title, title_justify="left")
    for column in table.columns:
        shown.add_column(column, justify="right")
    for row in table.rows:
        shown.add_row(*(text_of(cell, table.decimals) for cell in row))
    return shown


def report(options: ImageCosts, tables: Sequence[Table]) -> dict[str, Any]:
    """Return the results with everything needed to interpret them, for the JSON."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "settings": options.model_dump(mode="json", include=set(ImageCosts.__annotations__)),
        "tables": msgspec.to_builtins(tables),
    }


def run(options: ImageCosts, console: Console) -> list[Path]:
    """Measure, print and write. Returns the paths of the files."""
    stem = options.out / datetime.now(UTC).strftime("images-%Y-%m-%dT%H%M%S")
    tables = list[Table]()
    for name in options.figures:
        console.print(f"measuring [bold]{name}[/]")
        tables.append(_FIGURES[name](options, stem))
        console.print(grid(tables[-1]))
    options.out.mkdir(parents=True, exist_ok=True)
    path = stem.with_suffix(".json")
    path.write_text(json.dumps(report(options, tables), indent=1) + "\n")
    paths = [path]
    if options.record is not None:
        paths.append(record.add(options.record, options.machine, tables))
    console.print(f"wrote {' and '.join(map(str, paths))}", highlight=False)
    return paths


def main() -> None:
    """Measure, or print an error."""
    try:
        run(ImageCosts.load(sys.argv[1:]), Console())
    except BatonError as error:
        fail("baton bench images", error)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
