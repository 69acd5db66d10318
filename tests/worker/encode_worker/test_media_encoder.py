"""One item at a time, cached by key; what is wrong with an item is said."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton.protocol import Blob, Media
from baton_worker.encode_worker.media_encoder import MediaEncoder
from baton_worker.engine.multimodal.encoder_cache import EncoderCache
from baton_worker.engine.multimodal.pixels import PixelsError
from tests.fakes.vision_tower import FakeTower


def item(value: float, key: bytes = b"k", size: int = 4) -> Media:
    data = np.full(1, value, "<f4").tobytes()[:size]
    return Media(key * 32, 0, 3, Blob("float32", (1, 1, 1), data))


def test_an_item_is_encoded_once_and_refused_by_name() -> None:
    fake = FakeTower(3)
    encoder = MediaEncoder(fake.tower, EncoderCache(1 << 20), torch.device("cpu"))
    first = encoder.encode(item(10.0))
    assert first[:, 0].tolist() == [10.0, 11.0, 12.0]
    assert torch.equal(encoder.encode(item(10.0)), first) and fake.batches == [1]
    for bad, why in ((item(1.0, b"c", size=3), "cut off"), (item(float("nan"), b"n"), "finite")):
        with pytest.raises(PixelsError, match=why):
            encoder.encode(bad)
        assert bad.digest not in encoder
    encoder.trim({b"k" * 32})
    assert b"k" * 32 in encoder
