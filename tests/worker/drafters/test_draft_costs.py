"""How much of a prompt a step catches up with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.drafters.draft_costs import catch_up_tokens, measure_chunks, measure_rows
from baton_worker.drafters.draft_forward import DraftForward
from baton_worker.drafters.draft_model_weights import DraftModelWeights
from baton_worker.layers.build_context import BuildContext
from baton_worker.speculative.config import SpeculativeConfig
from baton_worker.speculative.step_costs import StepCosts
from tests.support.worker.proposers import context


@pytest.mark.row("F08.01")
def test_a_chunk_takes_about_as_long_as_the_passes_of_the_drafts() -> None:
    costs = StepCosts({1: 0.010, 16: 0.014, 64: 0.038})
    assert catch_up_tokens(costs, 1) == 16, "never less"
    assert catch_up_tokens(costs, 4) == 64
    assert catch_up_tokens(costs, 8) == 128  # 0.070, and twice as many 0.134.
    assert catch_up_tokens(StepCosts({1: 0.001, 2: 0.001}), 2) == 1024


@pytest.mark.row("F08.01")
def test_what_there_is_room_for_is_measured_and_nothing_is_held(stories: Path) -> None:
    build = BuildContext(torch.device("cpu"), torch.float32)
    weights = DraftModelWeights(0, load_model(stories, build), build)

    def measured(**sizes: int) -> tuple[str, str]:
        given = context(SpeculativeConfig(3), weights.loaded, **sizes)
        run = DraftForward(weights, given)
        costs = measure_rows(run, given.max_num_seqs), measure_chunks(run)
        assert run.kv._pool.num_available == given.num_pages
        return str(costs[0]), str(costs[1])

    rows, chunks = measured()
    assert [pair.split(":")[0] for pair in rows.split(", ")] == ["1", "2", "4", "8"]
    assert [pair.split(":")[0] for pair in chunks.split(", ")] == ["1", "2", "16", "64"]
    few, short = measured(num_pages=6)
    assert [pair.split(":")[0] for pair in few.split(", ")] == ["1", "2"]
    assert [pair.split(":")[0] for pair in short.split(", ")] == ["1", "2"]
    assert measured(max_model_len=8) == ("1: 0.0 ms, 2: 0.0 ms",) * 2
