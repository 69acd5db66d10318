"""Steps of an encoder: texts that are run whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from baton.protocol import Pooling
from baton.protocol.token_columns import pack
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.engine.engine import Engine
from baton_worker.layers.media_embeddings import MediaEmbeddings
from tests.support import tiny_encoders
from tests.support.worker.whole_texts import engine, picture, plan, text, vectors


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("encoder")
    tiny_encoders.save(folder, "BertModel")
    return engine(folder)


def test_an_encoder_needs_no_memory_for_pages(encoder: Engine) -> None:
    resolved = encoder.resolved
    assert resolved.kv_bytes == 0 and resolved.num_pages * 16 >= 4 * resolved.max_model_len
    assert resolved.max_num_batched_tokens >= resolved.max_model_len
    assert resolved.pooling is not None and resolved.pooling.reach == "whole"


def test_texts_in_one_step(encoder: Engine) -> None:
    encoder.reset()
    first, second = [0, 9, 8, 7, 2], [0, 5, 2]
    result = encoder.step(plan(1, text(0, first), text(2, second)))
    found = vectors(result)
    assert set(found) == {0, 2} and not result.rows and not result.failed
    encoder.reset()
    alone = vectors(encoder.step(plan(1, text(1, first))))[1]
    assert found[0] == pytest.approx(alone, abs=1e-5)
    assert np.linalg.norm(found[0]) == pytest.approx(1.0, abs=1e-5)


def test_the_second_text_of_a_pair(encoder: Engine) -> None:
    encoder.reset()
    tokens = [0, 9, 8, 2, 7, 2]
    pair = Pooling(reach="whole", second=4)
    found = vectors(encoder.step(plan(1, text(0, tokens), text(1, tokens, pair))))
    assert np.abs(found[0] - found[1]).max() > 1e-3


def test_a_part_of_a_text_is_refused(encoder: Engine) -> None:
    encoder.reset()
    with pytest.raises(PlanError, match="part of a text"):
        encoder.step(plan(1, text(0, [0, 9, 8, 2]), num_scheduled=pack([2], "I")))
    encoder.reset()


def test_a_token_is_refused(encoder: Engine) -> None:
    encoder.reset()
    with pytest.raises(PlanError, match="encoder"):
        encoder.step(plan(1, text(0, [0, 9, 2], None)))
    encoder.reset()


def test_numbers_that_are_not_finite_cost_one_text(tmp_path: Path) -> None:
    tiny_encoders.save(tmp_path, "BertModel")
    here = engine(tmp_path)
    table = here._model.embedding.tokens.weight
    table.data[77] = float("nan")
    result = here.step(plan(1, text(0, [0, 77, 2]), text(1, [0, 9, 2])))
    assert set(vectors(result)) == {1} and set(result.failed) == {0}
    # Whoever comes next into the same slot is not touched by it.
    again = here.step(plan(2, text(0, [0, 9, 2]), release=pack([0, 1], "I")))
    assert vectors(again)[0] == pytest.approx(vectors(result)[1], abs=1e-6)


def test_an_encoder_of_texts_takes_no_image(encoder: Engine) -> None:
    encoder.reset()
    result = encoder.step(plan(1, picture(0, 1)))
    assert "takes no media" in result.failed[0]


def test_embeddings_in_the_place_of_tokens_are_not_ignored(encoder: Engine) -> None:
    encoder.reset()
    inputs = encoder._runner.batch.prepare(plan(1, text(0, [0, 9, 2])))
    with pytest.raises(AssertionError, match="embeddings"):
        encoder._runner.forward(
            replace(inputs, embeddings=MediaEmbeddings(torch.tensor([1]), torch.zeros(1, 4)))
        )
    encoder.reset()
