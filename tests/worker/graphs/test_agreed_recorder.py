"""All ranks capture a step, or none does."""

from __future__ import annotations

import pytest
import torch

from baton_worker.graphs import Repeater, Uncaptured
from baton_worker.graphs.agreed_recorder import AgreedRecorder
from baton_worker.graphs.capture import Recording, Run
from baton_worker.kernels.cpu.call_recorder import Extent
from tests.fakes.threaded_ranks import Threaded, together

CPU = torch.device("cpu")


class Failing(Repeater):
    """It cannot capture steps of two rows."""

    def capture(self, run: Run, extent: Extent) -> Recording:
        if extent.rows == 2:
            raise Uncaptured("memory is short")
        return super().capture(run, extent)


@pytest.mark.row("F13.06")
def test_a_rank_that_fails_makes_all_of_them_fail() -> None:
    def part(ranks: Threaded) -> list[str]:
        recorder = AgreedRecorder(Failing() if ranks.rank else Repeater(), ranks, CPU)
        found = []
        for rows in (1, 2, 3):
            try:
                recorder.capture(tuple, Extent.decode(rows))
                found.append("captured")
            except Uncaptured as error:
                found.append(error.message)
        return found

    first, second = together(2, part)
    assert first == ["captured", "another rank cannot capture them", "captured"]
    assert second == ["captured", "memory is short", "captured"]
