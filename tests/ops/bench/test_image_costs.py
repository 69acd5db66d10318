"""`baton bench images` end to end against a mock server: tables, JSON and records."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from baton_ops.bench import image_costs, image_runs
from baton_ops.bench.image_costs import ImageCosts, fleets
from baton_ops.bench.page import markdown
from baton_ops.bench.record import read_all
from tests.fakes.openai_server import Completions


def test_every_figure_becomes_a_table_of_the_page(
    url: str, fake: Completions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[Sequence[str]]()

    @contextmanager
    def served(model: str, flags: Sequence[str], *others: object) -> Iterator[str]:
        started.append(flags)
        yield url

    waits = SimpleNamespace(waits=([0.9, 0.1], [0.9, 0.05]))
    monkeypatch.setattr(image_costs, "simulate", lambda path, encode_workers: waits)
    monkeypatch.setattr(image_costs, "served", served)
    monkeypatch.setattr(image_runs, "_STATS_SECONDS", 0.0)
    fake.app.get("/fleet")(lambda: {"media_encoded": 0, "media_encoded_locally": 5})
    options = ImageCosts(
        requests=1, rounds=1, streams=2, storm=1, input_len=8, output_len=4, image_width=16,
        image_height=16, out=tmp_path / "out", record=tmp_path, machine="cpu",
        serve_args="--worker.threads 1",
    )  # fmt: skip
    for turn in range(2):
        printed = io.StringIO()
        paths = image_costs.run(options, Console(file=printed, width=160))
        assert paths[1].parent == tmp_path and len(list(tmp_path.glob("*.json"))) == 1
        events = str((tmp_path / "out" / paths[0].name).with_suffix(".events"))
        recorded = ("--encode", "1", "--scheduler.event-log", events)
        flags = [(), *fleets(options).values(), recorded, ("--encode", "2")]
        assert started[7 * turn :] == [["--worker.threads", "1", *each] for each in flags]
    report = json.loads(paths[0].read_text())
    assert [len(table["rows"]) for table in report["tables"]] == [1, 4, 4]
    assert report["tables"][2]["rows"][3] == ["simulated", "2", 50.0, 0.5]
    [record] = read_all(tmp_path)
    assert [len(table.rows) for table in record.tables] == [1, 4, 4]
    page = markdown([record])
    for table in record.tables:
        assert f"### {table.title}" in page and table.title in printed.getvalue()
    assert "## Images" in page and "## Kernels" not in page
