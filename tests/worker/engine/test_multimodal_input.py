"""Media as they come over the wire."""

from __future__ import annotations

import numpy as np
import pytest

from baton.protocol import Blob
from baton_worker.engine.multimodal_input import pixels_of

SHAPE = (3, 2, 1)
DATA = np.arange(6, dtype="<f4").tobytes()


def test_an_image() -> None:
    found = pixels_of((Blob("float32", SHAPE, DATA),), SHAPE)
    assert isinstance(found, np.ndarray) and found.shape == SHAPE
    assert found.flatten().tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("media", "shape", "words"),
    [
        ((Blob("float32", SHAPE, DATA),), None, "takes no media"),
        ((Blob("float32", SHAPE, DATA),) * 2, SHAPE, "one image was expected, not 2"),
        ((Blob("float32", (3, 1, 2), DATA),), SHAPE, r"shape [3, 2, 1] was expected"),
        ((Blob("float32", SHAPE, DATA[:-4]),), SHAPE, "was expected"),
    ],
)
def test_what_cannot_be_seen(
    media: tuple[Blob, ...], shape: tuple[int, ...] | None, words: str
) -> None:
    found = pixels_of(media, shape)
    assert isinstance(found, str) and words in found
