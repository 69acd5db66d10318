"""Captures a model's steps when it starts, or says why it runs without."""

from __future__ import annotations

import torch

from baton.logs import logger
from baton_worker.graphs.capture import CudaRecorder, Recorder, Uncaptured
from baton_worker.graphs.graphed_model import GraphedModel
from baton_worker.graphs.tape import TapeRecorder, Untaped

log = logger(__name__)


def recorder_for(device: torch.device) -> Recorder:
    """The recorder of a device."""
    return CudaRecorder(device) if device.type == "cuda" else TapeRecorder()


def why_uncaptured(graphed: GraphedModel) -> str | None:
    """Capture; returns why the captures cannot be used, as half a sentence."""
    try:
        graphed.capture()
    except Uncaptured as error:
        if not isinstance(error, Untaped):
            log.warning("decode steps run kernel by kernel: %s", error.message)
        return error.message
    # GPU kernels do not promise the same bits for a padded step.
    if not isinstance(graphed.recorder, TapeRecorder) or graphed.holds():
        return None
    log.warning("replayed decode steps had other answers, and are not used")
    return "replayed ones had other answers"
