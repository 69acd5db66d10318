"""What tokens of a step attend to, and where its KV are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.multimodal.cross_encoder_step import CrossEncoderStep
from baton_worker.engine.multimodal.cross_page_table import CrossPageTable
from baton_worker.engine.multimodal.encoder_cache import EncoderCache
from baton_worker.engine.multimodal_input import SeenMedia, SequenceMedia
from baton_worker.layers.attention.cross_states import CrossInputs
from tests.fakes.vision_tower import FakeTower
from tests.support.worker.plans import batch, entering, plan

CPU = torch.device("cpu")


def item(value: float, name: bytes = b"") -> SequenceMedia:
    pixels = np.full((1, 1, 1), value, np.float32)
    return SequenceMedia(name or b"%d" % value, np.arange(1), pixels, (1, 1, 1))


def inputs(*seen: SeenMedia) -> StepInputs:
    made = batch().prepare(
        plan(new_sequences=(entering(0, [1, 2, 3]),), pages={0: [0]}, run=[(0, 0, 3, 1)])
    )
    return replace(made, seen=seen)


def cross(found: StepInputs) -> CrossInputs:
    assert found.embeddings is not None and found.embeddings.cross is not None
    assert found.embeddings.values.shape == (0, FakeTower.width)
    return found.embeddings.cross


def test_states_are_written_once_and_seen_by_many() -> None:
    fake = FakeTower(3)
    step = CrossEncoderStep(fake.tower, EncoderCache(0), CPU, CrossPageTable(2, 1, 4))
    one, two, needed = item(10), item(20), {b"10", b"20"}
    assert step(plain := inputs(), needed) is plain
    seen = (SeenMedia((one, two), np.array([2])), SeenMedia((one,), np.array([0, 1])))
    found = cross(step(inputs(*seen), needed))
    assert found.places.tolist() == [0, 1, 2] and found.items.tolist() == [1, 1, 0]
    assert found.lengths.tolist() == [6, 3] and found.num_pages == 5
    assert [w.states[:, 0].tolist() for w in found.writes] == [
        [10, 11, 12, 20, 21, 22],
        [10, 11, 12],
    ]
    assert found.tables.shape == (2, 3) and fake.batches == [2]
    later = cross(step(inputs(SeenMedia((one,), np.array([0]))), needed))
    assert later.writes == () and later.lengths.tolist() == [3] and fake.batches == [2]
    assert later.tables[0].tolist() == found.tables[1, :2].tolist()
    alone = cross(step(inputs(SeenMedia((two,), np.array([1]))), set()))
    assert len(alone.writes) == 1 and fake.batches == [2, 1], "its states had gone"


def test_an_item_whose_states_are_not_finite_fails_its_own_rows() -> None:
    table = CrossPageTable(2, 1, 100)
    step = CrossEncoderStep(FakeTower(3).tower, EncoderCache(1 << 20), CPU, table)
    given = inputs(SeenMedia((item(float("nan"), b"bad"),), np.array([2])))
    [write] = cross(step(given, {b"bad"})).writes
    assert not write.states.any() and step.broken_slots(given) == [0]
    assert (b"bad",) not in table
    fine = inputs(SeenMedia((item(20),), np.array([0])))
    step(fine, {b"20"})
    assert step.broken_slots(fine) == [] and (b"20",) in table
