"""Steps counted, layers timed, and nothing left behind."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from baton.protocol import Sampling
from baton_worker.attention import AttentionSpec
from baton_worker.attention.backends.cpu import CpuBackend
from baton_worker.attention.call_stats import CallStats
from baton_worker.attention.selector import AttentionSelector
from baton_worker.config import Config
from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.engine import Engine
from baton_worker.engine.runtime_stats import LayerTimes, RuntimeStats
from baton_worker.layers.layer import Bare
from tests.fakes.scheduler_planner import Planner, Sequence, run_all

CPU = torch.device("cpu")


class Inner(Bare):
    def forward(self, x: int) -> int:
        return x + 1


class Outer(Bare):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: int) -> int:
        return int(self.inner(self.inner(x)))


def rows(*counts: int) -> BatchRows:
    many = np.array(counts, np.int64)
    return BatchRows(np.arange(len(many)), np.zeros_like(many), many, np.ones(len(many), np.bool_))


def a_call() -> AttentionSpec:
    return AttentionSpec(4, 2, 8, 1.0, None, torch.float32, CPU)


def test_a_layer_is_charged_for_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times, ticks = LayerTimes(CPU), iter(range(100))
    monkeypatch.setattr(times, "_now", lambda: float(next(ticks)))
    with times.watching():
        assert Outer()(1) == 3
    assert times.calls == {"Outer": 1, "Inner": 2}
    # Clock readings: outer 0, inner 1-2, inner 3-4, outer 5.
    assert times.seconds == {"Inner": 2.0, "Outer": 3.0}


def test_the_plain_call_comes_back_even_after_an_error() -> None:
    plain = Bare.__call__
    with pytest.raises(TypeError), LayerTimes(CPU).watching():
        Outer()("no number")
    assert Bare.__call__ is plain


def test_a_report_says_what_the_steps_were() -> None:
    stats = RuntimeStats(3, CPU)
    said = []
    for ran in (rows(7, 1), rows(1, 1), rows(1)):
        with stats.watching():
            Outer()(1)
        said.append(stats.close_step(ran, 0.01, 0.001))
    assert said[:2] == ["", ""]
    assert said[2].startswith(
        "3 steps: 1 with prompts (7 tokens), 4 tokens decoded, rows 1 to 2 (mean 1.7), "
        "10.00 ms a step, gap 1.00 ms; the last one, of 1 rows, in ms: "
    )
    assert "Outer" in said[2] and "Inner" in said[2] and "x2" in said[2]


@pytest.mark.row("F04.30")
def test_a_report_says_what_attention_planned_in_its_interval() -> None:
    counts = CallStats(plans=5)
    stats, said = RuntimeStats(2, CPU, counts), list[str]()
    for fallbacks in (0, 3, 0, 0):
        with stats.watching():
            counts.plans += 1
            counts.fallbacks += fallbacks
        said.append(stats.close_step(rows(1), 0.01, 0.0))
    assert "; attention: 2 plans, 0 of them replans, 3 fallbacks to torch; " in said[1]
    assert "; attention: 2 plans, 0 of them replans, 0 fallbacks to torch; " in said[3]


@pytest.mark.row("F22.08", "F04.30")
@pytest.mark.parametrize("interval", [4, 7])
def test_the_environment_turns_it_on(
    stories: Path,
    interval: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    small = [
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--num-gpu-blocks-override",
        "64",
        "--max-num-seqs",
        "2",
    ]
    argv = ["--model", str(stories), "--threads", "1", *small]

    def tokens() -> list[list[int]]:
        engine = Engine.build(Config.load(argv))
        made = [Sequence([1, 403, 407], Sampling(28, temperature=0.0))]
        return run_all(Planner(engine, num_pages=64), made)

    plain = tokens()
    monkeypatch.setenv("BATON_WORKER_RUNTIME_STATS", "1")
    monkeypatch.setenv("BATON_WORKER_RUNTIME_STATS_INTERVAL", str(interval))
    with caplog.at_level(logging.INFO):
        assert tokens() == plain
    said = [r.message for r in caplog.records if r.message.startswith(f"{interval} steps: ")]
    assert len(said) == 28 // interval
    assert all("Linear" in line and "outside layers" in line for line in said)
    # The first interval has the prompt and then decodes: other rows than the warm-up had last.
    assert all(f"; attention: {interval} plans, " in line for line in said)
    assert all(" 0 of them replans, " in line for line in said[1:])
    kernels = isinstance(AttentionSelector().select(a_call()), CpuBackend)
    assert all((" 0 fallbacks" in line) == kernels for line in said)
