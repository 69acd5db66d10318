"""Decode steps that are replayed on a CPU: everything about graphs but the graph."""

from __future__ import annotations

from collections.abc import Iterable

from baton_worker.engine.forward.causal_forward import CausalForward
from baton_worker.engine.model_runner import ModelRunner
from baton_worker.graphs import GraphedModel, Recorder, Repeater, Sizes
from baton_worker.graphs.capture import Recording, Run
from baton_worker.kernels.cpu.call_recorder import Extent
from baton_worker.models.decoder import Model


class Counting:
    """Counts what a recorder captures, by default the twin, and what is replayed."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self._recorder = Repeater() if recorder is None else recorder
        self.captured = self.replays = 0

    def capture(self, run: Run, extent: Extent) -> Recording:
        """See `Recorder`."""
        self.captured += 1
        return _Counted(self._recorder.capture(run, extent), self)


class _Counted:
    def __init__(self, recording: Recording, counts: Counting) -> None:
        self._recording, self._counts = recording, counts

    def replay(self, extent: Extent) -> None:
        self._counts.replays += 1
        self._recording.replay(extent)


def replaying(
    runner: ModelRunner, model: object, rows: Iterable[int] = (1, 2, 4, 8), length: int = 256
) -> Counting:
    """From now on a runner, whose cache has a spare page, replays its decode steps."""
    assert isinstance(model, Model)
    forward, counts = runner.forward, Counting()
    assert isinstance(forward, CausalForward)
    sizes = Sizes(tuple(rows), length)
    forward.model = graphed = GraphedModel(model, forward._cache, sizes, counts, forward.device)
    graphed.capture()
    return counts
