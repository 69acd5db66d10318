"""`baton bench scaling` against mock servers: requests, results, plots and files."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from baton.errors import SettingsError
from baton_ops.bench import scaling
from baton_ops.bench.load_generator import Outcome
from baton_ops.bench.scaling import Name, Scaling, curves
from baton_ops.bench.summary import summarise
from baton_ops.bench.sweep import Point
from tests.fakes.openai_server import Completions

SMALL: dict[str, Any] = {
    "size": "quick",
    "concurrency": (1, 2),
    "contexts": (8, 16),
    "input_len": 8,
    "output_len": 4,
}


def measure(out: Path, **options: Any) -> tuple[dict[str, Any], str]:
    """The JSON that was written, and what was printed."""
    printed = io.StringIO()
    paths = scaling.run(Scaling(out=out, **{**SMALL, **options}), Console(file=printed, width=100))
    assert [path.suffix for path in paths] == [".json", ".png"]
    assert paths[1].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    return json.loads(paths[0].read_text()), printed.getvalue()


def test_a_running_server(url: str, fake: Completions, tmp_path: Path) -> None:
    report, printed = measure(tmp_path, url=url, curves=("concurrency", "context"))
    assert [curve["name"] for curve in report["curves"]] == ["Load", "Context"]
    assert [curve["levels"] for curve in report["curves"]] == [[1, 2], [8, 16]]
    assert report["factor"] == 1.3 and "key" not in report["settings"]
    words = " ".join(printed.split())
    assert all(curve["sentence"] in words for curve in report["curves"])
    runs = report["runs"]["concurrency"] + report["runs"]["context"]
    assert [run["summary"]["successful"] for run in runs] == [1, 2, 1, 1]
    assert len(fake.asked) == 1 + 2 + 5  # what tells the prompts' kind, and the warm-up


def test_workers_need_servers_of_their_own(url: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--curves concurrency,context"):
        measure(tmp_path, url=url)
    assert not list(tmp_path.iterdir())


def test_every_number_of_workers_has_its_server(
    url: str, fake: Completions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, Sequence[str]]] = []

    @contextmanager
    def served(model: str, flags: Sequence[str], log: Path, seconds: float) -> Iterator[str]:
        started.append((model, list(flags)))
        yield url

    monkeypatch.setattr(scaling, "served", served)
    report, _ = measure(tmp_path, model="m", workers=(1, 3), in_flight=2, serve_args="--gateways 2")
    flags = ["--gateways", "2", "--workers"]
    assert started == [("m", [*flags, "1"]), ("m", [*flags, "3"])]
    runs = report["runs"]
    assert {name: [run["level"] for run in found] for name, found in runs.items()} == {
        "concurrency": [1, 2],
        "context": [8, 16],
        "workers": [1, 3],
    }
    assert [run["summary"]["successful"] for run in runs["workers"]] == [2, 6]


def test_the_model_says_how_long_a_context_may_be(
    url: str, fake: Completions, tmp_path: Path
) -> None:
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "fake", "max_model_len": 24}]}

    fake.app.router.routes = [r for r in fake.app.router.routes if r.path != "/v1/models"]  # type: ignore[attr-defined]
    fake.app.get("/v1/models")(models)
    report, _ = measure(tmp_path, url=url, curves=("context",), contexts=(8, 16, 32))
    assert report["curves"][0]["levels"] == [8, 16, 20]


def point(level: int, seconds: float, streams: int = 1) -> Point:
    """Streams that each have a token per `seconds`, 10 of them, after a first one at 1 s."""
    times = [1.0 + seconds * i for i in range(11)]
    one = Outcome(0.0, times, input_tokens=level, output_tokens=11, ended=times[-1])
    return Point(level, summarise([one] * streams))


def test_costs() -> None:
    points: dict[Name, list[Point]] = {
        "concurrency": [point(1, 0.1), point(4, 0.2, 4)],
        "context": [point(8, 0.1), point(16, 0.3)],
    }
    load, context = curves(Scaling(), points)
    assert load.costs["ms of the server"] == pytest.approx((2000 / 11, 3000 / 44))
    assert load.costs["ms between two tokens"] == pytest.approx((100.0, 200.0))
    assert context.cost == pytest.approx((100.0, 300.0))
    assert context.costs["ms per token of the prompt"] == pytest.approx((125.0, 62.5))
    assert (load.adds, load.knee, context.adds, context.knee) == (False, None, True, 8)


def test_sizes_and_what_is_said_instead() -> None:
    quick, full = Scaling(size="quick"), Scaling()
    assert quick.levels("concurrency")[-1] == 32 and full.levels("concurrency")[-1] == 128
    assert full.levels("context") == (128, 256, 512, 1024, 2048, 4096, 8192)
    assert quick.usual.output_len < full.usual.output_len
    own = Scaling.load(["--contexts", "64,96", "--output-len", "1", "--rounds", "5"])
    assert own.levels("context") == (64, 96)
    assert (own.usual.output_len, own.usual.rounds) == (2, 5)
    with pytest.raises(SettingsError, match="'concurrency' needs two or more"):
        Scaling(concurrency=(4,)).levels("concurrency")


def test_levels_are_checked_before_a_server_starts(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="ascending"):
        measure(tmp_path, workers=(2, 1))


def test_the_command(url: str, tmp_path: Path) -> None:
    flags = ["--url", url, "--curves", "concurrency", "--concurrency", "1,2", "--size", "quick"]
    command = [sys.executable, "-m", "baton", "bench", "scaling", *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == ""
    assert "requests in flight" in done.stdout
    assert len(list((tmp_path / "bench").glob("scaling-*.json"))) == 1
    refused = subprocess.run([*command[:5], "--url", url], capture_output=True, text=True)
    assert refused.returncode == 2 and "--curves concurrency,context" in refused.stderr
