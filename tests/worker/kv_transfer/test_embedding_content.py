"""Embeddings as content: rows come as they went, and nothing else can be read or written."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton.protocol import Grant, Pull
from baton_worker.kv_transfer.embedding_content import EmbeddingContent
from baton_worker.kv_transfer.wire_format import BLOCK_BYTES, Extent

TOKEN = bytes(16)


def pull(end: int, start: int = 0) -> Pull:
    return Pull(1, 5, "", TOKEN, start, end, b"", 1, b"k" * 32)


@pytest.mark.parametrize(("width", "dtype"), [(3000, torch.bfloat16), (300_000, torch.float32)])
def test_rows_come_as_they_went(width: int, dtype: torch.dtype) -> None:
    """In blocks of many rows, and of one row that is larger than a block."""
    source, target = EmbeddingContent(width, dtype), EmbeddingContent(width, dtype)
    rows = 400 if width < 4000 else 2
    given = torch.randn(rows, width).to(dtype)
    source.offer(5, given)
    reader = source.reader(Grant(1, 5, TOKEN, b"", rows))
    writer = target.writer(pull(rows))
    assert len(writer.extents()) > 1
    for extent in writer.extents():
        assert reader.covers(extent)
        block = np.zeros(source.block_bytes(extent), np.uint8)
        assert len(block) <= source.place_bytes
        reader.read(extent, block)
        writer.write(extent, block)
    found = target.take(5)
    assert found is not None and torch.equal(found, given)
    assert target.take(5) is None
    assert source.layout == target.layout != EmbeddingContent(width + 1, dtype).layout


def test_only_what_is_offered_can_be_read() -> None:
    content = EmbeddingContent(4, torch.float32)
    content.offer(5, torch.zeros(3, 4))
    reader = content.reader(Grant(1, 5, TOKEN, b"", 3))
    wrong = (Extent(1, 0, 1), Extent(0, -1, 1), Extent(0, 2, 4), Extent(0, 2, 2))
    assert not any(reader.covers(extent) for extent in wrong)
    big = EmbeddingContent(BLOCK_BYTES // 4, torch.float32)
    big.offer(5, torch.zeros(2, BLOCK_BYTES // 4))
    assert not big.reader(Grant(1, 5, TOKEN, b"", 2)).covers(Extent(0, 0, 2))
    content.withdraw(5)
    for grant in (Grant(1, 5, TOKEN, b"", 3), Grant(1, 6, TOKEN, b"", 3)):
        with pytest.raises(ValueError, match="not offered"):
            content.reader(grant)
    for bad in (pull(3, start=1), pull(0), pull(2**31)):
        with pytest.raises(ValueError, match="cannot be pulled"):
            content.writer(bad)
