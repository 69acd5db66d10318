"""The bench of the engine: what is measured is what was asked for, or a sentence says why not."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from baton.errors import SettingsError
from baton.protocol import Plan, Result
from baton_worker.bench import engine as bench
from baton_worker.bench.engine import Bench, run
from baton_worker.engine.engine import Engine
from tests.support.worker.lora_folders import write_adapter

SMALL = (
    "--device",
    "cpu",
    "--dtype",
    "float32",
    "--max-num-batched-tokens",
    "200",
    "--threads",
    "1",
)


@pytest.mark.row("F22.07")
def test_prefill_and_generation_at_three_lengths(
    stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every token of prompts and answers runs once; figures and JSON hold all rounds."""
    ran: list[tuple[int, int]] = []

    def step(engine: Engine, plan: Plan, turn: int = 0) -> Result:
        result = plain(engine, plan, turn)
        ran.append((len(plan.new_sequences), len(plan.rows) // 4))
        return result

    plain = Engine.step
    lengths = ["--lengths", "100,200,400", "--generate", "5", "--rows", "2", "--rounds", "2"]
    asked = [str(stories), *SMALL, *lengths, "--out", str(tmp_path / "figures.json")]
    monkeypatch.setattr(Engine, "warm_up", lambda engine: None)
    monkeypatch.setattr(Engine, "step", step)
    console = Console(file=StringIO(), width=100)
    found = run(Bench.load(asked), console)
    # 1, 1 and 2 chunks per prompt of two sequences, five steps of both, two rounds.
    assert sum(rows == 1 for _, rows in ran) == 2 * 2 * (1 + 1 + 2)
    assert sum(rows == 2 for _, rows in ran) == 2 * 3 * 5
    assert [f.length for f in found] == [100, 200, 400]
    assert all(len(f.prefill) == len(f.generate) == 2 and min(f.generate) > 0 for f in found)
    written = json.loads((tmp_path / "figures.json").read_text())
    assert written["rows"] == 2 and [x["length"] for x in written["lengths"]] == [100, 200, 400]
    assert console.file.getvalue().count(" to ") == 6  # type: ignore[attr-defined]


def test_the_lengths_of_the_field_are_the_default() -> None:
    assert Bench.load([]).lengths == (256, 512, 1024)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--lengths", "600"), "over the model's 512; give smaller --lengths"),
        (
            ("--lengths", "60", "--rows", "2", "--num-gpu-blocks-override", "8"),
            "do not fit; give smaller --lengths or --rows",
        ),
    ],
)
def test_what_does_not_fit_is_refused(stories: Path, flags: tuple[str, ...], why: str) -> None:
    options = Bench.load([str(stories), *SMALL, *flags])
    with pytest.raises(SettingsError, match=why):
        run(options, Console(file=StringIO()))


def test_an_error_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["baton bench engine", "/nowhere"])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    said = capsys.readouterr().err
    assert ended.value.code == 1 and said.startswith("baton bench engine: ")


@pytest.mark.row("F11.02", "F22.07")
def test_adapters_are_compared_with_an_engine_that_serves_none(
    stories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "warm_up", lambda engine: None)
    shapes = {"model.layers.0.self_attn.q_proj": (64, 64)}
    folders = [write_adapter(tmp_path / name, shapes, seed=n) for n, name in enumerate("abc")]
    modules = ",".join(f"{folder.name}={folder}" for folder in folders)
    asked = [str(stories), *SMALL, "--lengths", "20", "--generate", "4", "--rows", "4"]
    adapters = ["--enable-lora", "--lora-modules", modules, "--max-loras", "2"]
    console = Console(file=StringIO(), width=120)
    found = run(Bench.load([*asked, *adapters, "--rounds", "1"]), console)
    names = ["no adapters served", "none used", "one adapter", "2 adapters"]
    assert [figures.subject for figures in found] == names
    assert all(min(figures.generate) > 0 for figures in found)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "1.000, 1.000" in shown and "2 adapters" in shown
    with pytest.raises(SettingsError, match="--lora-modules"):
        run(Bench.load([*asked, "--enable-lora"]), console)
