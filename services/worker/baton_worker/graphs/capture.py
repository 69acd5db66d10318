"""Functions over memory that stays where it is, made to run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.cpu.call_recorder import Extent

Run: TypeAlias = Callable[[], Sequence[Tensor]]
"""Reads and writes memory that is there before and after. What it allocates besides is its own, but
for what it returns: that is read after each replay."""

_TRIALS = 2
"""Runs before a capture: libraries choose, compile and load their kernels in the first, and
nothing of that may happen while a stream is captured."""


class Uncaptured(ModelError):
    """A step cannot be captured, as half a sentence: it runs kernel by kernel."""


class Recording(Protocol):
    """A function that was captured."""

    def replay(self, extent: Extent) -> None:
        """Run it again, on what its memory holds now, for the first tokens and rows at least;
        queued on the current stream."""
        ...


class Recorder(Protocol):
    """Captures functions, and replays one at a time."""

    def capture(self, run: Run, extent: Extent) -> Recording:
        """Run a function for so many tokens and rows, and take down what it does."""
        ...


class CudaRecorder:
    """CUDA graphs that share one pool of memory: the largest is captured first, for what it
    allocates the others find there.

    Args:
        device: a GPU, the current one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, run: Run, extent: Extent) -> Recording:
        """See `Recorder`.

        Raises:
            Uncaptured: the function waits for the host, or there is no memory for it.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            self._try(run)
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                run()
        except RuntimeError as error:
            raise Uncaptured(
                f"they cannot be captured as CUDA graphs ({error}); a smaller "
                "--max-cudagraph-capture-size helps where memory is short"
            ) from error
        return _Graph(graph)

    def _try(self, run: Run) -> None:
        """On the stream of the capture, so that workspaces of libraries belong to it."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(_TRIALS):
                run()
        current.wait_stream(self._stream)


class _Graph:
    """Replays all of its rows, padding included."""

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self._graph = graph

    def replay(self, extent: Extent) -> None:
        """See `Recording`."""
        self._graph.replay()


class Repeater:
    """The twin, on any device: a replay calls the function. It costs what the padding costs and
    saves nothing, so no worker chooses it; what tests compare is everything but the graph."""

    def capture(self, run: Run, extent: Extent) -> Recording:
        """See `Recorder`."""
        run()
        return _Repeated(run)


class _Repeated:
    def __init__(self, run: Run) -> None:
        self._run = run

    def replay(self, extent: Extent) -> None:
        """See `Recording`."""
        self._run()
