"""Captures on all ranks of a model, or on none."""

from __future__ import annotations

import torch

from baton_worker.distributed.communicator import Communicator, numbers
from baton_worker.graphs.capture import Recorder, Recording, Run, Uncaptured
from baton_worker.kernels.cpu.call_recorder import Extent


class AgreedRecorder:
    """See `Recorder`. A captured step contains communication, so a rank that replays it needs all
    others to replay theirs. Every rank captures the same functions in the same order.

    Args:
        recorder: captures on this rank.
        ranks: those of the model.
        device: device of this rank.
    """

    def __init__(self, recorder: Recorder, ranks: Communicator, device: torch.device) -> None:
        self._recorder, self._ranks, self._device = recorder, ranks, device

    def capture(self, run: Run, extent: Extent) -> Recording:
        """See `Recorder`.

        Raises:
            Uncaptured: this rank or another one cannot.
        """
        recording: Recording | None = None
        reason = Uncaptured("another rank cannot capture them")
        try:
            recording = self._recorder.capture(run, extent)
        except Uncaptured as error:
            reason = error
        captured = min(numbers(self._ranks, int(recording is not None), self._device))
        if recording is None or not captured:
            raise reason
        return recording
