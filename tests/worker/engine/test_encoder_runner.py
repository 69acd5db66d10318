"""Steps in which texts are run whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from baton.protocol import Blob, NewSequence, Plan, Pooling, Result, Sampling
from baton.protocol.token_columns import pack, unpack
from baton.protocol.vector_columns import split
from baton_worker.config import Config
from baton_worker.engine.engine import Engine
from baton_worker.engine.input_batch import PlanError
from tests.support import tiny_dual_encoders, tiny_encoders, tiny_models

WHOLE = Pooling(reach="whole")


def engine(folder: Path, **settings: object) -> Engine:
    given = {"device": "cpu", "dtype": "float32", "threads": 1, "max_num_seqs": 4, "block_size": 16}
    return Engine.build(Config(model=str(folder), **given | settings))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("encoder")
    tiny_encoders.save(folder, "BertModel")
    return engine(folder)


def text(slot: int, tokens: list[int], pooling: Pooling | None = WHOLE) -> NewSequence:
    sampling = Sampling(0 if pooling else 4, temperature=0.0)
    return NewSequence(slot, pack(tokens), len(tokens), sampling, pooling=pooling)


def plan(step: int, *new: NewSequence, **fields: bytes) -> Plan:
    """All of the new ones run to their ends, in pages of their own."""
    slots = [one.slot for one in new]
    lengths = [len(one.tokens) // 4 for one in new]
    given = {
        "rows": pack(slots, "I"),
        "num_computed": pack([0] * len(slots), "I"),
        "num_scheduled": pack(lengths, "I"),
        "samples": bytes(one.pooling is None for one in new),
        "page_rows": pack(slots, "I"),
        "page_counts": pack([8] * len(slots), "I"),
        "pages": pack((8 * slot + i for slot in slots for i in range(8)), "I"),
    }
    return Plan(1, step, new_sequences=new, **given | fields)


def vectors(result: Result) -> dict[int, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    return {slot: np.frombuffer(v, "<f4") for slot, v in split(result.pooled).items()}


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


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("towers")
    tiny_dual_encoders.save(folder, "SiglipModel")
    return engine(folder, max_num_seqs=8, block_size=2)


def picture(slot: int, seed: int, **fields: Any) -> NewSequence:
    """Sixteen placeholders and the pixels that they stand for."""
    pixels = np.random.default_rng(seed).standard_normal((3, 30, 30)).astype("<f4")
    blob = Blob(**{"dtype": "float32", "shape": pixels.shape, "data": pixels.tobytes()} | fields)
    return structs.replace(text(slot, [0] * 16), media=(blob,))


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


def test_an_encoder_of_texts_takes_no_image(encoder: Engine) -> None:
    encoder.reset()
    result = encoder.step(plan(1, picture(0, 1)))
    assert "takes no media" in result.failed[0]


def test_longer_images_than_texts(tmp_path: Path) -> None:
    """Clients are told how long a text may be; there is room for images all the same."""
    tiny_dual_encoders.save(tmp_path, "CLIPModel")
    resolved = engine(tmp_path).resolved
    assert resolved.pooling is not None and resolved.pooling.max_model_len == 24
    assert resolved.max_model_len == 50 <= resolved.max_num_batched_tokens


def test_text_and_vectors_in_one_step(tmp_path: Path) -> None:
    """A model that does both gives in one step what it gives in two."""
    tiny_models.save_checkpoint(tmp_path, "MistralForCausalLM", sliding_window=None)
    tiny_encoders.rewrite(tmp_path, {}, architectures=["GritLM"])
    tiny_encoders.save_tokenizer(tmp_path, types=False)
    here = engine(tmp_path)
    assert here.resolved.pooling is not None and here.resolved.pooling.generates
    tokens = [9, 8, 7, 6, 5, 30, 31]
    both = here.step(plan(1, text(0, tokens, None), text(1, tokens), text(2, tokens[:3])))
    here.reset()
    one = here.step(plan(1, text(0, tokens, None)))
    here.reset()
    other = here.step(plan(1, text(1, tokens), text(2, tokens[:3])))
    assert unpack(both.tokens) == unpack(one.tokens) and len(both.tokens) == 4
    for slot, vector in vectors(other).items():
        assert vectors(both)[slot] == pytest.approx(vector, abs=1e-5)
    # The step that follows decodes as if nothing had happened.
    with torch.inference_mode():
        follow = here.step(plan(2, text(3, tokens, None)))
    assert unpack(follow.tokens) == unpack(one.tokens)
