"""What a factory of runners chooses: replayed or eager steps, one at a time or ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from baton_worker.config import Config
from baton_worker.engine import warmup
from baton_worker.engine.engine import Engine
from baton_worker.graphs import TapeRecorder, Uncaptured, Untaped
from baton_worker.graphs.capture import Recording
from baton_worker.kernels.cpu.call_recorder import CallRecording

pytestmark = pytest.mark.skipif(
    CallRecording.refuses() is not None, reason=str(CallRecording.refuses())
)


def config(stories: Path, **given: Any) -> Config:
    settings = {
        "device": "cpu",
        "dtype": "float32",
        "num_gpu_blocks_override": 64,
        "max_num_seqs": 8,
        "threads": 1,
    }
    return Config(model=str(stories), **(settings | given))


@pytest.mark.row("F13.06")
def test_an_engine_replays_by_itself(stories: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        engine = Engine.build(config(stories))
    assert "steps of at most 8 rows and 512 tokens replayed" in caplog.text
    assert engine._runner.forward.model is engine._factory.graphed
    before = engine.progress
    for plan in warmup.plans(engine.resolved):
        engine.step(plan)
        if plan.rows:
            assert engine.progress > before + 1, "kernels count, so a long step is no hang"
        before = engine.progress
    eager = Engine.build(config(stories, max_replay_rows=0))
    assert eager._factory.graphed is None and eager._pipeline is None


@pytest.mark.parametrize("kind", [Untaped, Uncaptured])
def test_an_engine_without_does_not_fail(
    stories: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[Uncaptured],
) -> None:
    def refuse(*_: object) -> Recording:
        raise kind("torch computes a part of it (anything)")

    monkeypatch.setattr(TapeRecorder, "capture", refuse)
    with caplog.at_level("INFO"):
        engine = Engine.build(config(stories))
    assert engine._runner.forward.model is engine._model
    assert "decode steps run kernel by kernel: torch computes a part of it" in caplog.text
