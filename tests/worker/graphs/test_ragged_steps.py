"""Steps of any shape that are replayed; whole models are in `test_tape`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from baton_worker.attention import AttentionBatch
from baton_worker.checkpoint.load import load_model
from baton_worker.graphs import TapeRecorder
from baton_worker.graphs.ragged_steps import RaggedSteps
from baton_worker.kernels.cpu.call_recorder import CallRecording, Extent
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model
from tests.support.worker.graphed_steps import BLOCKS, CPU, PAGE, Texts

pytestmark = pytest.mark.skipif(
    CallRecording.refuses() is not None, reason=str(CallRecording.refuses())
)
LENGTH = PAGE * BLOCKS


@pytest.fixture
def steps(stories: Path) -> RaggedSteps:
    loaded = load_model(stories, BuildContext(CPU, torch.float32))
    assert isinstance(loaded.model, Model)
    with torch.inference_mode():
        return RaggedSteps(
            loaded.model, Texts(loaded, 2).cache, Extent(10, 3), LENGTH, TapeRecorder(), CPU
        )


def batch(counts: list[int], start: int = 0) -> AttentionBatch:
    tables = [[0] * BLOCKS for _ in counts]
    return AttentionBatch.build(counts, [start] * len(counts), tables, PAGE, CPU)


@pytest.mark.parametrize(
    ("counts", "start", "fits"),
    [
        ([8, 1, 1], 0, True),
        ([10], 0, True),
        ([1], 0, True),
        ([8, 2, 1], 0, False),
        ([1, 1, 1, 1], 0, False),
        ([4], LENGTH - 4, True),
        ([4], LENGTH - 3, False),
    ],
)
def test_what_fits(steps: RaggedSteps, counts: list[int], start: int, fits: bool) -> None:
    """As many tokens and rows as were captured, no longer than the block table that was."""
    if start + sum(counts) > LENGTH:
        wide = [[0] * (BLOCKS + 1)]
        given = AttentionBatch.build(counts, [start], wide, PAGE, CPU)
    else:
        given = batch(counts, start)
    assert steps.fits(given) is fits


def test_a_part_of_the_keys_is_not_what_was_captured(steps: RaggedSteps) -> None:
    given = batch([3, 2])
    assert steps.fits(given)
    assert not steps.fits(replace(given, ranges=((0, 3), (0, 1))))


@torch.inference_mode()
def test_it_holds(steps: RaggedSteps) -> None:
    assert steps.holds()
