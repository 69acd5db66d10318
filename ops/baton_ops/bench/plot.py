"""Benchmark plots: throughput and latency over concurrency, cost curves and their knees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from baton_ops.bench.knee import Curve
from baton_ops.bench.summary import Summary

_ACCENT, _SECOND, _SOFT = "#b9430f", "#2c6e7a", "#6d675c"
_ROOM = 3.0
"""Headroom factor of a cost panel, for the legend."""


def draw(points: Sequence[tuple[int, Summary]], title: str, path: Path) -> None:
    """Write a PNG of closed-loop runs, given as (concurrency, summary) in rising order."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    FigureCanvasAgg(figure)  # no screen is needed, and no global state of pyplot
    left, right = figure.subplots(1, 2)
    levels = [level for level, _ in points]
    summaries = [summary for _, summary in points]
    _curve(left, levels, [s.output_throughput for s in summaries], "output", _ACCENT)
    _curve(left, levels, [s.total_throughput for s in summaries], "input and output", _SECOND)
    _frame(left, levels, "Throughput", "tokens per second")
    left.set_ylim(bottom=0)
    first, later = [s.ttft.median for s in summaries], [s.tpot.median for s in summaries]
    _curve(right, levels, first, "first token (TTFT)", _ACCENT)
    _curve(right, levels, later, "per token (TPOT)", _SECOND)
    _frame(right, levels, "Median latency", "milliseconds")
    _log(right, first + later)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, color=_SOFT)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)


class Point(NamedTuple):
    """One run of one system."""

    system: str
    in_flight: int
    throughput: float
    """Output tokens per second."""
    tpot: float
    """Median, in milliseconds."""


def compare(points: Sequence[Point], title: str, path: Path) -> None:
    """Write a PNG that compares systems: median milliseconds per token over tokens per second, with
    a line through the means of all rounds. Lower and further right is better."""
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names = list(dict.fromkeys(point.system for point in points))
    for name, marker in zip(names, "osD^vP*X", strict=False):
        system(axes, [point for point in points if point.system == name], marker)
    axes.set_xlabel("output tokens per second", color=_SOFT)
    axes.set_ylabel("milliseconds per token", color=_SOFT)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    _log(axes, [point.tpot for point in points])
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, color=_SOFT)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)


def system(axes: Axes, points: Sequence[Point], marker: str) -> None:
    """Draw one system: means by requests in flight, single runs in the background."""
    name = points[0].system
    colour = _ACCENT if name.startswith("baton") else _SECOND
    style = "--" if name.endswith(" stored") else "-"
    axes.plot(
        [p.throughput for p in points], [p.tpot for p in points], ".", color=colour, alpha=0.4
    )
    levels = sorted({point.in_flight for point in points})
    runs = [[p for p in points if p.in_flight == level] for level in levels]
    x = [fmean(p.throughput for p in run) for run in runs]
    y = [fmean(p.tpot for p in run) for run in runs]
    axes.plot(x, y, style, marker=marker, markersize=5, color=colour, alpha=0.85, label=name)
    for level, right, up in zip(levels, x, y, strict=True):
        axes.annotate(
            f"{level}", (right, up), (5, -9), textcoords="offset points", fontsize=8, color=colour
        )


def bends(curves: Sequence[Curve], title: str, path: Path) -> None:
    """Write a PNG of costs per token: one panel per curve, its knee marked, its summary below."""
    figure = Figure(figsize=(5.2 * len(curves), 5), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, curve in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
        panel(axes, curve)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, color=_SOFT)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)


def panel(axes: Axes, curve: Curve) -> None:
    """Draw one curve with its knee and summary."""
    levels = list(curve.levels)
    for (name, costs), colour in zip(curve.costs.items(), (_ACCENT, _SECOND, _SOFT), strict=False):
        _curve(axes, levels, list(costs), name, colour)
    _log(axes, [cost for costs in curve.costs.values() for cost in costs])
    axes.set_ylim(top=_ROOM * axes.get_ylim()[1])
    if (knee := curve.knee) is not None:
        axes.axvline(knee, color=_ACCENT, linewidth=1, linestyle="--", alpha=0.6)
        at = (knee, 0.01)
        axes.annotate(
            f" knee: {knee}", at, xycoords=("data", "axes fraction"), va="bottom", color=_ACCENT
        )
    _frame(axes, levels, curve.name, "")
    axes.set_xlabel(f"{curve.axis}\n\n{fill(curve.sentence, 62)}", color=_SOFT, fontsize=9)


def _curve(axes: Axes, x: list[int], y: list[float], label: str, colour: str) -> None:
    axes.plot(x, y, marker="o", markersize=4, linewidth=1.6, color=colour, label=label)


def _frame(axes: Axes, levels: list[int], title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xscale("log", base=2)
    axes.set_xticks(levels, labels=[str(level) for level in levels])
    axes.set_xlabel("requests in flight", color=_SOFT)
    axes.set_ylabel(unit, color=_SOFT)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def _log(axes: Axes, values: list[float]) -> None:
    """Use a log scale: times to the first and to later tokens differ by orders of magnitude."""
    measured = [value for value in values if value > 0]
    if not measured:
        return
    axes.set_yscale("log")
    axes.set_ylim(min(measured) / 1.6, max(measured) * 1.6)
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
