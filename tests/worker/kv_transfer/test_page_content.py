"""KV in pages as content: what does not fit a cache is refused."""

from __future__ import annotations

import numpy as np
import pytest

from baton.protocol import Grant, Pull
from baton.protocol.token_columns import pack
from baton_worker.kv_transfer.page_content import PageContent
from baton_worker.kv_transfer.wire_format import Extent, extents
from tests.fakes.page_caches import TOKEN, cache, filled

PAGES = pack([0, 1], "I")


def test_granted_tokens_are_read_as_they_are_written() -> None:
    source, target = filled(8), cache(8)
    reader = PageContent(source).reader(Grant(1, 9, TOKEN, PAGES, 9))
    content = PageContent(target)
    writer = content.writer(Pull(1, 9, "", TOKEN, 0, 9, PAGES))
    for extent in writer.extents():
        assert reader.covers(extent)
        block = np.zeros(content.block_bytes(extent), np.uint8)
        reader.read(extent, block)
        writer.write(extent, block)
        there = np.zeros_like(block)
        PageContent(target).reader(Grant(1, 9, TOKEN, PAGES, 9)).read(extent, there)
        assert (there == block).all() and block.any()
    assert not reader.covers(Extent(0, 0, 10)) and not reader.covers(Extent(99, 0, 1))
    assert len(extents(source, 0, 9)) == len(writer.extents())


def test_what_has_no_slots_is_refused() -> None:
    content = PageContent(cache(8))
    for pull in (Pull(1, 9, "", TOKEN, 0, 41, PAGES), Pull(1, 9, "", TOKEN, 3, 3, PAGES)):
        with pytest.raises(ValueError, match="do not fit"):
            content.writer(pull)
    with pytest.raises(ValueError, match="slots"):
        content.reader(Grant(1, 9, TOKEN, PAGES, 41))
