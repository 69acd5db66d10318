"""Steps of two encoders side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from baton.protocol.token_columns import pack
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.engine.engine import Engine
from tests.support import tiny_dual_encoders
from tests.support.worker.whole_texts import engine, picture, plan, text, vectors


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("towers")
    tiny_dual_encoders.save(folder, "SiglipModel")
    return engine(folder, max_num_seqs=8, block_size=2)


def test_texts_and_images_in_one_step(towers: Engine) -> None:
    """In whatever order they stand, each is what it is alone."""
    towers.reset()
    new = (picture(0, 1), text(1, [9, 8, 1]), picture(2, 2), text(3, [7, 1]), picture(4, 1))
    found = vectors(towers.step(plan(1, *new)))
    assert set(found) == {0, 1, 2, 3, 4}
    for one in new:
        towers.reset()
        [alone] = vectors(towers.step(plan(1, one))).values()
        assert found[one.slot] == pytest.approx(alone, abs=1e-5)
    assert found[0] == pytest.approx(found[4], abs=1e-6)
    assert np.abs(found[0] - found[2]).max() > 1e-2


def test_an_image_of_another_shape_costs_itself_alone(towers: Engine) -> None:
    towers.reset()
    new = (picture(0, 1, shape=(3, 15, 60)), text(1, [9, 8, 1]))
    result = towers.step(plan(1, *new))
    assert set(vectors(result)) == {1}
    assert "an image of shape [3, 30, 30] was expected" in result.failed[0]


def test_a_slot_forgets_its_image(towers: Engine) -> None:
    towers.reset()
    towers.step(plan(1, picture(0, 1)))
    after = vectors(towers.step(plan(2, text(0, [9, 8, 1]), release=pack([0], "I"))))[0]
    towers.reset()
    assert after == pytest.approx(vectors(towers.step(plan(1, text(0, [9, 8, 1]))))[0], abs=1e-6)


def test_a_token_is_refused(towers: Engine) -> None:
    towers.reset()
    with pytest.raises(PlanError, match="encoder"):
        towers.step(plan(1, text(0, [9, 8, 1], None), text(1, [7, 1], None)))
    towers.reset()


def test_longer_images_than_texts(tmp_path: Path) -> None:
    """Clients are told how long a text may be; there is room for images all the same."""
    tiny_dual_encoders.save(tmp_path, "CLIPModel")
    resolved = engine(tmp_path).resolved
    assert resolved.pooling is not None and resolved.pooling.max_model_len == 24
    assert resolved.max_model_len == 50 <= resolved.max_num_batched_tokens
