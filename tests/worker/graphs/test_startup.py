"""A model's steps are captured, or it says why not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.graphs import Repeater, Sizes, TapeRecorder, Uncaptured
from baton_worker.graphs.capture import Recording, Run
from baton_worker.graphs.startup import graphed_model, why_uncaptured
from baton_worker.kernels.cpu.call_recorder import Extent
from baton_worker.kv_cache import KVCache
from baton_worker.layers.build_context import BuildContext

CPU = torch.device("cpu")


class Refusing:
    """Captures nothing."""

    def capture(self, run: Run, extent: Extent) -> Recording:
        raise Uncaptured("this one captures nothing")


def test_a_recorder_that_cannot_is_a_reason(
    stories: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = load_model(stories, BuildContext(CPU, torch.float32))
    cache = KVCache(loaded.spec, 8, 4, dtype=torch.float32, device=CPU, spare=1)
    given = (loaded.model, cache, Sizes((2,), 32), CPU)
    assert isinstance(graphed_model(*given).recorder, TapeRecorder)
    assert why_uncaptured(graphed_model(*given, Repeater())) is None
    assert why_uncaptured(graphed_model(*given, Refusing())) == "this one captures nothing"
    assert "kernel by kernel: this one captures nothing" in caplog.text
