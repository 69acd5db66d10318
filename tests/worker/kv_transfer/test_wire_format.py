from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from baton.protocol.token_columns import pack
from baton_worker.kernels.kv_codes import CODES
from baton_worker.kernels.page_layout import Layout
from baton_worker.kv_cache import KVCache, page_groups
from baton_worker.kv_transfer.wire_format import (
    BLOCK_BYTES,
    Extent,
    block_bytes,
    extents,
    held,
    layout,
    place_bytes,
    read,
    tables,
    token_bytes,
    write,
)
from baton_worker.spec import (
    Attention,
    ContextShard,
    Decoder,
    Glu,
    Head,
    LinearAttention,
    Mask,
    Norm,
    Rope,
)
from tests.fakes.page_caches import (
    SOURCE_PAGES,
    cache,
    filled,
    tokens,
)

HERE, THERE = np.array([SOURCE_PAGES]), np.arange(8)[None]


def test_long_ranges_are_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_worker.kv_transfer.wire_format.BLOCK_BYTES", 100)
    cut = extents(cache(8), 0, 7)
    assert [e.end - e.start for e in cut if e.layer == 0] == [3, 3, 1]
    assert [e.end - e.start for e in cut if e.layer == 1] == [1] * 7


@pytest.mark.parametrize("kind", ["auto", *CODES])
def test_what_is_read_is_what_is_written(kind: str) -> None:
    source, target = filled(8, CODES.get(kind)), cache(4, codes=CODES.get(kind))
    for extent in extents(source, 3, 30):
        block = np.empty(block_bytes(source, extent), np.uint8)
        assert len(block) == 27 * token_bytes(source, extent.layer)
        read(source, HERE, extent, block)
        write(target, THERE, extent, block)
    for layer in range(2):
        arrived = tokens(target, layer, list(range(8)))[3:30]
        assert arrived.equal(tokens(source, layer, SOURCE_PAGES)[3:30])


def test_a_block_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="are not 3 tokens"):
        write(cache(4), THERE, Extent(0, 0, 3), np.zeros(2, np.uint8))


def test_a_place_holds_the_largest_block(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place_bytes(cache(8)) == BLOCK_BYTES
    monkeypatch.setattr("baton_worker.kv_transfer.wire_format.BLOCK_BYTES", 100)
    assert place_bytes(cache(8)) == 128 and token_bytes(cache(8), 1) == 128


def test_a_layout_knows_nothing_of_page_sizes() -> None:
    assert layout(cache(4)) == layout(cache(16)) == "bfloat16x32,bfloat16x128"


def test_two_kinds_of_codes_are_two_layouts() -> None:
    layouts = [layout(cache(4, codes=codes)) for codes in (None, *CODES.values())]
    assert layouts[1:] == ["int8x24,int8x96", "fp8x24,fp8x96"]


@pytest.mark.row("F12.10")
@pytest.mark.parametrize("kind", ["auto", *CODES])
@pytest.mark.parametrize(("first", "second"), list(permutations(Layout)), ids=str)
def test_a_block_is_the_same_whatever_the_layout_and_fits_into_either(
    kind: str, first: Layout, second: Layout
) -> None:
    codes = CODES.get(kind)
    source, twin = (filled(8, codes, layout) for layout in (first, second))
    target = cache(4, codes=codes, layout=second)
    for extent in extents(source, 3, 30):
        sent, same, arrived_block = np.zeros((3, block_bytes(source, extent)), np.uint8)
        read(source, HERE, extent, sent)
        read(twin, HERE, extent, same)
        assert sent.any() and np.array_equal(sent, same)
        write(target, THERE, extent, sent)
        read(target, THERE, extent, arrived_block)
        assert np.array_equal(arrived_block, sent)
    for layer in range(2):
        arrived = tokens(target, layer, list(range(8)))[3:30]
        assert arrived.equal(tokens(source, layer, SOURCE_PAGES)[3:30])


def grouped(page_size: int) -> KVCache:
    """Two layers, one of which sees ten tokens: they share memory, and have tables of their own."""
    rope = Rope(dim=8, base=1e4, max_position=64)
    mixers = (Attention(4, 2, 8, 1.0, rope), Attention(4, 2, 8, 1.0, rope, Mask(10)))
    layers = tuple((mixer, Glu(16)) for mixer in mixers)
    model = Decoder(16, 32, layers, Norm(1e-5), Head())
    made = KVCache(
        model,
        128 // page_size,
        page_size,
        dtype=torch.float32,
        device=torch.device("cpu"),
        groups=page_groups(model, page_size, torch.float32),
    )
    assert made.groups.windows == (0, 10)
    return made


def test_of_a_group_that_sees_a_window_only_what_there_are_pages_for_travels() -> None:
    source, target = grouped(8), grouped(4)
    source.layers[0].normal_(generator=torch.Generator().manual_seed(0))
    none = 2**32 - 1
    here = tables(source, pack([9, 2, 7, 4, 1, none, none, 3, 8, 6], "I"))
    there = tables(target, pack([*range(10), *[none] * 5, *range(20, 25)], "I"))
    cut = extents(target, 0, 37, there)
    assert cut == [Extent(0, 0, 37), Extent(1, 20, 37)]
    for extent in cut:
        assert held(source, here, extent)
        block = np.empty(block_bytes(source, extent), np.uint8)
        read(source, here, extent, block)
        write(target, there, extent, block)
    wanted, arrived = source.layers[0], target.layers[0]
    assert arrived[:10].flatten(0, 1)[:37].equal(wanted[[9, 2, 7, 4, 1]].flatten(0, 1)[:37])
    assert arrived[20:25].flatten(0, 1)[:17].equal(wanted[[3, 8, 6]].flatten(0, 1)[4:21])
    assert not held(source, here, Extent(1, 15, 37)), "the page of token 15 was given back"
    assert not held(source, here, Extent(0, 0, 41)), "it has no page for token 40"


def part_of(rank: int, page_size: int) -> KVCache:
    """What one of two ranks keeps of 64 tokens."""
    mixer = Attention(
        4, 1, 8, 1.0, Rope(dim=8, base=1e4, max_position=64), context=ContextShard(rank, 2)
    )
    model = Decoder(16, 32, ((mixer, Glu(16)),), Norm(1e-5), Head())
    device = torch.device("cpu")
    return KVCache(model, 64 // page_size, page_size, dtype=torch.bfloat16, device=device)


@pytest.mark.row("F14.09")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_passes_on_the_tokens_that_it_has(rank: int) -> None:
    """In pieces that end anywhere: what a rank has not written yet comes again with the next."""
    source, target = part_of(rank, 8), part_of(rank, 4)
    assert layout(source) == layout(target) == "bfloat16x32/2"
    pages = source.layers[0]
    for start, end in ((0, 3), (3, 4), (4, 9), (9, 30)):
        here = [n for n in range(0, 32) if 2 * n + rank < end]
        pages[SOURCE_PAGES] = 99.0
        for row in here:
            pages[SOURCE_PAGES[row // 4], row % 4] = float(row)
        for extent in extents(source, start, end):
            block = np.empty(block_bytes(source, extent), np.uint8)
            read(source, HERE, extent, block)
            write(target, THERE, extent, block)
    arrived = target.layers[0][:8].flatten(0, 1)[: len(here)]
    assert arrived.equal(torch.arange(len(here)).bfloat16().view(-1, 1, 1, 1).expand_as(arrived))


@pytest.mark.parametrize("pages", [[], [1, 2, 3], [0, 16]], ids=str)
def test_tables_of_another_cache_are_refused(pages: list[int]) -> None:
    with pytest.raises(ValueError, match=r"pages are not those of 2 groups|page 16 is not there"):
        tables(grouped(8), pack(pages, "I"))


def recurrent() -> KVCache:
    """A layer of attention, and one that keeps a state in each page of four tokens."""
    mixers = (Attention(4, 2, 8, 1.0, None), LinearAttention(2, 6, (0.1, 0.2), Norm(1e-6)))
    model = Decoder(16, 32, tuple((mixer, None) for mixer in mixers), Norm(1e-5), Head())
    groups, cpu = page_groups(model, 4, torch.bfloat16), torch.device("cpu")
    assert groups.windows == (0, 5)
    return KVCache(model, 16, 4, dtype=torch.bfloat16, device=cpu, groups=groups)


def test_states_travel_with_the_pages_that_tokens_touch() -> None:
    """30 tokens, of which a window's layers keep the last two pages: the last one is not full."""
    source, target = recurrent(), recurrent()
    assert layout(source) == "bfloat16x64,bfloat16x48,float32x288/4"
    generator = torch.Generator().manual_seed(0)
    for track in source.tracks:
        track.pages.normal_(generator=generator)
    none = 2**32 - 1
    here = tables(source, pack([*range(8), *[none] * 6, 9, 12], "I"))
    there = tables(target, pack([*range(7, -1, -1), *[none] * 6, 15, 14], "I"))
    cut = extents(target, 0, 30, there)
    assert cut == [Extent(0, 0, 30), Extent(1, 24, 30), Extent(2, 24, 30)]
    assert [block_bytes(source, extent) for extent in cut] == [30 * 64, 6 * 48, 2 * 288]
    for extent in cut:
        block = np.empty(block_bytes(source, extent), np.uint8)
        read(source, here, extent, block)
        write(target, there, extent, block)
    assert target.states[1][[15, 14]].equal(source.states[1][[9, 12]])
    assert target.layers[1][15].equal(source.layers[1][9])
    assert target.layers[1][14, :2].equal(source.layers[1][12, :2])
    assert target.layers[0][7].equal(source.layers[0][0])


def test_a_state_larger_than_a_block_travels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_worker.kv_transfer.wire_format.BLOCK_BYTES", 100)
    cut = [extent for extent in extents(recurrent(), 4, 14) if extent.layer == 2]
    assert cut == [Extent(2, 4, 8), Extent(2, 8, 12), Extent(2, 12, 14)]
