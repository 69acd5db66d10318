"""Captures a model's steps when it starts, or logs why it runs without."""

from __future__ import annotations

import time

import torch

from baton.logs import logger
from baton_worker.distributed.communicator import Communicator
from baton_worker.graphs.agreed_recorder import AgreedRecorder
from baton_worker.graphs.capture import CudaRecorder, Recorder, Uncaptured
from baton_worker.graphs.graphed_model import GraphedModel
from baton_worker.graphs.policy import Sizes
from baton_worker.graphs.tape import TapeRecorder, Untaped
from baton_worker.kv_cache import KVCache
from baton_worker.models.decoder import Model

log = logger(__name__)


def graphed_model(
    model: object,
    cache: KVCache,
    sizes: Sizes,
    device: torch.device,
    recorder: Recorder | None = None,
    ranks: Communicator | None = None,
) -> GraphedModel:
    """Return the model that captures and replays steps of `model`, a decoder, with a recorder or
    that of the device. `ranks` that share the model capture together."""
    assert isinstance(model, Model), "others are not captured"
    if recorder is None:
        recorder = CudaRecorder(device) if device.type == "cuda" else TapeRecorder()
    if ranks is not None and ranks.size > 1:
        recorder = AgreedRecorder(recorder, ranks, device)
    return GraphedModel(model, cache, sizes, recorder, device)


def why_uncaptured(graphed: GraphedModel) -> str | None:
    """Capture; returns why the captures cannot be used, as half a sentence."""
    begin = time.perf_counter()
    try:
        graphed.capture()
    except Uncaptured as error:
        if not isinstance(error, Untaped):
            log.warning("decode steps run kernel by kernel: %s", error.message)
        return error.message
    # GPU kernels do not promise the same bits for a padded step.
    if not isinstance(graphed.recorder, TapeRecorder) or graphed.holds():
        log.info("captured decode steps in %.1f s", time.perf_counter() - begin)
        return None
    log.warning("replayed decode steps had other answers, and are not used")
    return "replayed ones had other answers"
