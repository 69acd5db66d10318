"""Embeddings for the placeholders of a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.multimodal.encoder_cache import EncoderCache
from baton_worker.engine.multimodal.encoder_step import EncoderStep
from baton_worker.engine.multimodal_input import MediaRows, SequenceMedia
from tests.fakes.vision_tower import FakeTokenTower, FakeTower
from tests.support.worker.plans import batch, entering, plan

CPU = torch.device("cpu")


def item(value: int) -> SequenceMedia:
    pixels = np.full((1, 1, 1), value, np.float32)
    return SequenceMedia(b"%d" % value, np.arange(3), pixels, (1, 1, 1))


def inputs(*media: MediaRows) -> StepInputs:
    made = batch().prepare(
        plan(new_sequences=(entering(0, [1, 2, 3]),), pages={0: [0]}, run=[(0, 0, 3, 1)])
    )
    return replace(made, media=media)


def test_what_is_cached_is_not_encoded_and_the_rest_together() -> None:
    fake = FakeTower(3)
    step = EncoderStep(fake.tower, EncoderCache(0), CPU)
    first, second = item(10), item(20)
    parts = (
        MediaRows(first, 1, np.array([0, 1])),
        MediaRows(second, 0, np.array([4])),
        MediaRows(first, 0, np.array([7])),
    )
    found = step(inputs(*parts), {first.digest}).embeddings
    assert found is not None and found.places.tolist() == [0, 1, 4, 7]
    assert found.values[:, 0].tolist() == [11.0, 12.0, 20.0, 10.0]
    assert fake.batches == [2] and step.last.num_items == 2
    # Nobody needs the second any more, so it has gone.
    step(inputs(*parts), set())
    assert fake.batches == [2, 1] and step.last.num_items == 1


def test_a_step_of_text_is_left_alone() -> None:
    step, given = EncoderStep(FakeTower(3).tower, EncoderCache(0), CPU), inputs()
    assert step(given, set()) is given


def test_an_item_whose_embeddings_are_not_finite_fails_its_own_rows() -> None:
    """Zeros stand for it, and nothing of it is kept."""
    cache = EncoderCache(1 << 20)
    step = EncoderStep(FakeTower(3).tower, cache, CPU)
    bad = replace(item(10), digest=b"bad", pixels=np.full((1, 1, 1), np.nan, np.float32))
    given = inputs(MediaRows(item(20), 0, np.array([0])), MediaRows(bad, 0, np.array([2])))
    found = step(given, set()).embeddings
    assert found is not None and found.values[:, 0].tolist() == [20.0, 0.0]
    assert step.broken_slots(given) == [0] and b"bad" not in cache and b"20" in cache
    fine = inputs(MediaRows(item(20), 0, np.array([0])))
    step(fine, set())
    assert step.broken_slots(fine) == []


def test_tokens_of_an_image_take_the_place_of_placeholders() -> None:
    cache = EncoderCache(1 << 20)
    step = EncoderStep(FakeTokenTower(3).tower, cache, CPU)
    given = inputs(MediaRows(item(20), 1, np.array([0, 2])))
    found = step(given, set())
    assert found.embeddings is None and found.tokens.tolist() == [21, 2, 22]
    assert given.tokens.tolist() == [1, 2, 3], "the log keeps its placeholders"
    bad = replace(item(10), digest=b"bad", pixels=np.full((1, 1, 1), np.nan, np.float32))
    broken = inputs(MediaRows(bad, 0, np.array([1])))
    assert step(broken, set()).tokens.tolist() == [1, 0, 3]
    assert step.broken_slots(broken) == [0] and b"bad" not in cache and b"20" in cache
