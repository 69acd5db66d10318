"""Capture of functions over fixed addresses, for replay."""

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
    """A step cannot be captured; the message is half a sentence. The step runs eagerly."""


class Recording(Protocol):
    """A captured function."""

    def replay(self, extent: Extent) -> None:
        """Run it on the current contents of its buffers, for at least the first tokens and rows;
        queued on the current stream."""
        ...


class Recorder(Protocol):
    """Captures functions, and replays one at a time."""

    def capture(self, run: Run, extent: Extent) -> Recording:
        """Run a function for these numbers of tokens and rows, and record its work."""
        ...


class CudaRecorder:
    """CUDA graphs that share one pool of memory: the largest is captured first, so that the others
    reuse its allocations.

    Args:
        device: a GPU, the current one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, run: Run, extent: Extent) -> Recording:
        """See `Recorder`.

        Raises:
            Uncaptured: the function synchronizes with the host, or memory is insufficient.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            self._try(run)
            # Other threads may use the device meanwhile: NCCL's own looks at events.
            with torch.cuda.graph(
                graph,
                pool=self._pool,
                stream=self._stream,
                capture_error_mode="thread_local",
            ):
                run()
        except RuntimeError as error:
            raise Uncaptured(
                f"they cannot be captured as CUDA graphs ({error}); a smaller "
                "--max-cudagraph-capture-size helps where memory is short"
            ) from error
        return _Graph(graph, run)

    def _try(self, run: Run) -> None:
        """Warm up on the capture stream, so that library workspaces belong to it."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(_TRIALS):
                run()
        current.wait_stream(self._stream)


class _Graph:
    """A CUDA graph; it replays all of its rows, padding included. It keeps the function: what that
    reads, as the tensors of its plans, lies outside the graph's memory and must stay."""

    def __init__(self, graph: torch.cuda.CUDAGraph, run: Run) -> None:
        self._graph, self._run = graph, run

    def replay(self, extent: Extent) -> None:
        """See `Recording`."""
        self._graph.replay()


class Repeater:
    """Twin of `CudaRecorder` for any device: a replay calls the function. It saves no time, so no
    worker chooses it; tests use it to check everything but the graph itself."""

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
