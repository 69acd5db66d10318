"""Summaries of handwritten outcomes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from baton_ops.bench.load_generator import Outcome
from baton_ops.bench.summary import Latency, summarise, table

GOOD = Outcome(10.0, [10.5, 11.0, 12.0], input_tokens=8, output_tokens=3, ended=12.0)
PAIRED = Outcome(11.0, [11.5, 12.5], input_tokens=4, output_tokens=5, ended=12.5)
BAD = Outcome(12.0, [13.0], input_tokens=9, output_tokens=9, ended=14.0, error="status 500")


def test_summary_of_a_run() -> None:
    found = summarise([GOOD, PAIRED, BAD])
    assert (found.successful, found.failed, found.errors) == (2, 1, {"status 500": 1})
    assert (found.duration, found.input_tokens, found.output_tokens) == (4.0, 12, 8)
    assert (found.request_throughput, found.output_throughput) == (0.5, 2.0)
    assert found.total_throughput == 5.0
    assert found.peak_concurrent == 2  # the bad one began when the first had ended
    assert found.ttft == Latency(500.0, 500.0, 500.0)
    assert (found.tpot.mean, found.tpot.median) == (500.0, 500.0)  # 1.5 s / 2 and 1.0 s / 4
    assert (found.itl.median, found.itl.mean) == (1000.0, pytest.approx(2500 / 3))
    assert found.e2el.p99 == pytest.approx(1995.0)
    # second 1 of the run holds one token of the first and half of the other's five
    assert found.peak_output_throughput == 3.5


def test_summary_of_nothing_and_of_failures() -> None:
    assert summarise([]).duration == 0.0
    found = summarise([BAD, BAD])
    assert (found.successful, found.failed, found.output_throughput) == (0, 2, 0.0)
    assert found.ttft == Latency(0.0, 0.0, 0.0) and found.errors == {"status 500": 2}


def test_latency_percentiles_are_interpolated() -> None:
    found = Latency.of([0.001 * n for n in range(1, 102)])
    assert (found.mean, found.median, found.p99) == pytest.approx((51.0, 51.0, 100.0))


def test_the_table_has_the_rows_that_vllm_prints() -> None:
    out = io.StringIO()
    Console(file=out, width=120).print(table([("fixed x1", summarise([GOOD, BAD]))]))
    text = out.getvalue()
    for row in (
        "Successful requests",
        "Failed requests",
        "Benchmark duration (s)",
        "P99 E2EL (ms)",
    ):
        assert row in text
    for short in ("TTFT", "TPOT", "ITL", "E2EL"):
        for part in ("Mean", "Median", "P99"):
            assert f"{part} {short} (ms)" in text
    assert "Output token throughput (tok/s)" in text and "0.75" in text
