"""Plots are PNG files with the given data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from baton_ops.bench.knee import Curve
from baton_ops.bench.load_generator import Outcome
from baton_ops.bench.plot import (
    Point,
    bends,
    compare,
    draw,
    panel,
    system,
)
from baton_ops.bench.summary import summarise


def test_draws_a_png(tmp_path: Path) -> None:
    fast = summarise([Outcome(0.0, [0.1, 0.2], input_tokens=2, output_tokens=2, ended=0.2)])
    slow = summarise([Outcome(0.0, [1.0, 9.0], input_tokens=2, output_tokens=2, ended=9.0)])
    one, two = tmp_path / "new" / "one.png", tmp_path / "two.png"
    draw([(1, slow), (8, fast)], "a model", one)
    draw([(1, fast), (8, slow)], "a model", two)
    assert one.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert one.read_bytes() != two.read_bytes()


def test_compares_systems(tmp_path: Path) -> None:
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    slow, fast = Point("baton bf16", 1, 40.0, 20.0), Point("baton bf16", 8, 300.0, 80.0)
    compare([slow, fast], "a model", one)
    compare([slow, fast._replace(system="vllm bf16")], "a model", two)
    assert one.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert one.read_bytes() != two.read_bytes()


def test_a_line_goes_through_the_means_of_rounds() -> None:
    axes = Figure().subplots()
    runs = [(1, 40.0, 20.0), (8, 300.0, 80.0), (1, 60.0, 30.0), (8, 500.0, 40.0)]
    system(axes, [Point("baton bf16", *run) for run in runs], "o")
    single, line = axes.lines
    assert list(single.get_xdata()) == [40, 300, 60, 500]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([50, 400], [25, 60])
    assert [text.get_text() for text in axes.texts] == ["1", "8"]


def test_draws_curves_and_their_knees(tmp_path: Path) -> None:
    load = Curve("Load", "in flight", (1, 2, 4), {"ms": (4.0, 2.0, 1.9)}, "rows take time")
    straight = Curve("Load", "in flight", (1, 2, 4), {"ms": (4.0, 2.0, 1.0)}, "rows take time")
    one, two = tmp_path / "new" / "one.png", tmp_path / "two.png"
    bends([load, straight], "a model", one)
    bends([straight], "a model", two)
    assert one.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert one.read_bytes() != two.read_bytes()


def test_a_knee_is_marked_where_it_is() -> None:
    bent = Curve("Load", "in flight", (1, 2, 4), {"ms": (4.0, 2.0, 1.9), "b": (1.0, 2.0, 3.0)}, "x")
    axes = Figure().subplots()
    panel(axes, bent)
    assert [text.get_text().strip() for text in axes.texts] == ["knee: 2"]
    assert list(axes.lines[-1].get_xdata()) == [2, 2]
    assert "Knee at 2 (in flight)" in " ".join(axes.get_xlabel().split())
    straight = Figure().subplots()
    panel(straight, replace(bent, costs={"ms": (4.0, 2.0, 1.0)}))
    assert not straight.texts and len(straight.lines) == 1
