"""A step begins in the first stage with what the host knows, and keeps it until it runs here."""

from __future__ import annotations

from typing import Any

import torch

from baton_worker.engine.async_scheduling.staged_forward import StagedForward
from tests.support.worker.plans import batch, entering, plan


class Led:
    """Runs a step as its tokens and the slots of its keys."""

    arrived = True

    def launch(self, tokens: Any, positions: Any, batch: Any, cache: Any, media: Any) -> Any:
        return lambda: (tokens.tolist(), positions.tolist(), batch.slot_mapping.tolist())


def test_a_step_in_flight_keeps_its_indices() -> None:
    forward = StagedForward(Led(), object(), torch.device("cpu"), 2)  # type: ignore[arg-type]
    held = batch()
    new = (entering(1, list(range(1, 10))), entering(0, [2, 3, 4]))
    runs = []
    chunks = [(1, 0, 3, 0), (1, 3, 3, 0), (1, 6, 3, 1)]
    for step, chunk in enumerate(chunks):
        more = {} if step else {"new_sequences": new, "pages": {1: [6, 1, 4], 0: [2]}}
        inputs = held.prepare(plan(step, run=[chunk], **more))
        runs.append(forward.launch(inputs))
        held.advance(inputs)
    assert [run() for run in runs] == [
        ([1, 2, 3], [0, 1, 2], [24, 25, 26]),
        ([4, 5, 6], [3, 4, 5], [27, 4, 5]),
        ([7, 8, 9], [6, 7, 8], [6, 7, 16]),
    ]
    assert forward.arrived
