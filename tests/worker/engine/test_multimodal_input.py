"""Media as they come over the wire."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from baton.protocol import Blob, Media
from baton_worker.engine.multimodal_input import pixels_of, prompt_media
from tests.fakes.vision_tower import IMAGE_TOKEN, FakeTower

SHAPE = (3, 2, 1)
DATA = np.arange(6, dtype="<f4").tobytes()


def seen(shape: tuple[int, ...] = SHAPE, data: bytes = DATA, start: int = 0) -> Media:
    return Media(b"d" * 32, start, 4, Blob("float32", shape, data))


def test_an_image() -> None:
    found = pixels_of((seen(),), SHAPE)
    assert isinstance(found, np.ndarray) and found.shape == SHAPE
    assert found.flatten().tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("media", "shape", "words"),
    [
        ((seen(),), None, "takes no media"),
        ((seen(),) * 2, SHAPE, "one image was expected, not 2"),
        ((seen((3, 1, 2)),), SHAPE, r"shape [3, 2, 1] was expected"),
        ((seen(data=DATA[:-4]),), SHAPE, "cut off"),
    ],
)
def test_what_cannot_be_seen(
    media: tuple[Media, ...], shape: tuple[int, ...] | None, words: str
) -> None:
    found = pixels_of(media, shape)
    assert isinstance(found, str) and words in found


def test_media_in_a_prompt_take_the_places_of_image_tokens() -> None:
    """Tokens that frame an image, or part its rows, are no embeddings of it."""
    tokens = np.array([7, IMAGE_TOKEN, 8, IMAGE_TOKEN, 9], np.int32)
    found = prompt_media([seen(start=1)], tokens, FakeTower(2).tower)
    assert not isinstance(found, str)
    [item] = found
    assert item.positions.tolist() == [1, 3] and item.pixels.shape == SHAPE


@pytest.mark.parametrize(
    ("media", "tower", "words"),
    [
        (seen(), None, "takes no media"),
        (seen(data=DATA[:-4]), FakeTower(2), "cut off"),
        (seen((6,)), FakeTower(2), "shape [6]"),
        (seen(), FakeTower(3), "2 placeholders in the place of 3"),
    ],
)
def test_media_in_a_prompt_that_cannot_be_seen(
    media: Media, tower: FakeTower | None, words: str
) -> None:
    tokens = np.array([IMAGE_TOKEN, IMAGE_TOKEN, 8, 9], np.int32)
    found = prompt_media([media], tokens, tower and tower.tower)
    assert isinstance(found, str) and words in found


def test_pixels_of_what_is_computed_are_not_needed() -> None:
    tokens = np.array([IMAGE_TOKEN, IMAGE_TOKEN, 8, 9, 10], np.int32)
    found = prompt_media([seen(data=b"")], tokens, FakeTower(2).tower, computed=4)
    assert not isinstance(found, str) and found[0].positions.tolist() == [0, 1]
    assert prompt_media([seen(data=b"")], tokens, FakeTower(2).tower, computed=3) == (
        "the pixels of a media item are cut off"
    )


def test_media_that_goes_along_with_tokens_that_are_not_there_yet() -> None:
    tower = FakeTower(5)
    tower.alongside = True
    item = replace(seen(), start=0, length=5, alongside=True)
    found = prompt_media([item], np.array([7, 8], np.int32), tower.tower)
    assert not isinstance(found, str) and found[0].positions.tolist() == [0, 1, 2, 3, 4]
    said = prompt_media([replace(item, alongside=False)], np.array([7], np.int32), tower.tower)
    assert isinstance(said, str) and "its way along with the tokens" in said
