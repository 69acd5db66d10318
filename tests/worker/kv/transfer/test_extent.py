from __future__ import annotations

import pytest

from baton_worker.kernels.pages import CODES
from baton_worker.kv.transfer.extent import Extent, extents, read, token_bytes, write
from tests.fakes.pages import SOURCE_PAGES, cache, filled, tokens


def test_long_ranges_are_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_worker.kv.transfer.extent.BLOCK_BYTES", 100)
    cut = extents(cache(8), 0, 7)
    assert [e.end - e.start for e in cut if e.layer == 0] == [3, 3, 1]
    assert [e.end - e.start for e in cut if e.layer == 1] == [1] * 7


@pytest.mark.parametrize("kind", ["auto", *CODES])
def test_what_is_read_is_what_is_written(kind: str) -> None:
    source, target = filled(8, CODES.get(kind)), cache(4, codes=CODES.get(kind))
    for extent in extents(source, 3, 30):
        data = read(source, SOURCE_PAGES, extent)
        assert len(data) == 27 * token_bytes(source, extent.layer)
        write(target, list(range(8)), extent, data)
    for layer in range(2):
        arrived = tokens(target, layer, list(range(8)))[3:30]
        assert arrived.equal(tokens(source, layer, SOURCE_PAGES)[3:30])


def test_data_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="are not 3 tokens"):
        write(cache(4), [0], Extent(0, 0, 3), b"12")
