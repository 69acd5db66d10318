"""Which placeholders of a step take which embeddings."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from baton.protocol import Blob, Media
from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.media_slots import MediaSlots
from baton_worker.engine.batch.plan_columns import PlanError
from tests.fakes.vision_tower import IMAGE_TOKEN, FakeTower

PIXELS = Blob("float32", (1, 1, 1), bytes(4))
I = IMAGE_TOKEN  # noqa: E741
TOKENS = np.array([5, I, I, I, 6, I, I, I, 7, 8], np.int32)
MEDIA = (Media(b"a" * 32, 1, 3, PIXELS), Media(b"b" * 32, 5, 3, PIXELS))


def rows(*parts: tuple[int, int, int]) -> BatchRows:
    """Of (slot, start, count)."""
    slots, starts, counts = (np.array(column, np.int64) for column in zip(*parts, strict=True))
    return BatchRows(slots, starts, counts, np.zeros(len(parts), np.bool_))


def found(slots: MediaSlots, *parts: tuple[int, int, int]) -> list[tuple[bytes, int, list[int]]]:
    return [
        (part.item.digest[:1], part.first, part.places.tolist())
        for part in slots.rows(rows(*parts))
    ]


def test_an_image_that_a_step_cuts_goes_on_in_the_next() -> None:
    slots = MediaSlots(FakeTower(3).tower)
    assert slots.enter(2, MEDIA, TOKENS) == "" and slots.enter(0, (), TOKENS) == ""
    assert found(slots, (0, 0, 4), (2, 0, 2)) == [(b"a", 0, [5])]
    assert found(slots, (2, 2, 5), (0, 4, 1)) == [(b"a", 1, [0, 1]), (b"b", 0, [3, 4])]
    assert found(slots, (2, 7, 3)) == [(b"b", 2, [0])]
    assert found(slots, (2, 8, 1)) == []


def test_what_is_not_computed_is_needed() -> None:
    slots, computed = MediaSlots(FakeTower(3).tower), np.zeros(3, np.int64)
    slots.enter(2, MEDIA, TOKENS)
    for position, needed in ((0, 2), (3, 2), (4, 1), (7, 1), (8, 0)):
        computed[2] = position
        assert len(slots.needed(computed)) == needed
    computed[2] = 0
    slots.release(np.array([2, 1], np.int64))
    assert not slots.needed(computed) and slots.rows(rows((2, 0, 5))) == ()


def test_what_cannot_be_seen_is_said() -> None:
    assert "takes no media" in MediaSlots(None).enter(0, MEDIA, TOKENS)
    assert MediaSlots(None).enter(0, (), TOKENS) == ""


def test_positions_on_several_axes_go_on_behind_an_image() -> None:
    """A step inside of an image has three axes, one behind it is as plain as text; a row without
    images beside it has its indices on each axis."""
    slots, media = MediaSlots(FakeTower(6).tower, axes=3), Media(b"a" * 32, 1, 6, PIXELS, (1, 4, 6))
    tokens = np.array([5, *[I] * 6, 7, 8], np.int32)
    assert slots.enter(2, (media,), tokens) == ""

    def positions(*parts: tuple[int, int, int]) -> list[Any]:
        given = rows(*parts)
        found: list[Any] = slots.positions(given, given.flat()[1]).tolist()
        return found

    t, h, w = positions((0, 3, 1), (2, 0, 5))
    assert (t, h, w) == ([3, 0, 1, 1, 1, 1], [3, 0, 1, 1, 1, 2], [3, 0, 1, 2, 3, 1])
    t, h, w = positions((2, 5, 4))
    assert (t, h, w) == ([1, 1, 4, 5], [2, 2, 4, 5], [2, 3, 4, 5])
    assert positions((2, 8, 1), (0, 3, 2)) == [5, 3, 4]
    assert positions((0, 3, 2)) == [3, 4]
    slots.release(np.array([2]))
    assert positions((2, 8, 1)) == [8]


def test_what_tokens_of_a_span_see() -> None:
    """The end of their span, wherever the step begins; a step that ends within one is refused."""
    tower = FakeTower(3)
    tower.bidirectional = True
    slots = MediaSlots(tower.tower)
    spanned = tuple(msgspec.structs.replace(item, spans=((0, 3),)) for item in MEDIA)
    assert slots.enter(2, spanned, TOKENS) == ""

    def last(*parts: tuple[int, int, int]) -> list[int] | None:
        given = rows(*parts)
        seen = slots.last_keys(given, given.flat()[1])
        return None if seen is None else seen.tolist()

    assert last((0, 4, 2), (2, 0, 5)) == [4, 5, 0, 3, 3, 3, 4]
    assert last((2, 2, 6), (0, 4, 1)) == [3, 3, 4, 7, 7, 7, 4]
    assert last((2, 4, 1)) is None and last((0, 0, 9)) is None
    with pytest.raises(PlanError, match="ends at token 6, within an image"):
        last((2, 4, 2))
    assert "as the media preprocessor says" in slots.enter(1, MEDIA, TOKENS)


def test_axes_and_grids_that_do_not_fit_are_said() -> None:
    media = (Media(b"a" * 32, 1, 3, PIXELS, (1, 4, 6)),)
    tokens = np.array([5, I, I, I], np.int32)
    assert "no grid" in MediaSlots(FakeTower(3).tower, axes=3).enter(0, media, tokens)
    assert "4 axes" in MediaSlots(FakeTower(3).tower, axes=4).enter(0, media, tokens)


def test_tokens_attend_to_the_last_image_or_run_of_images_before_them() -> None:
    tower = FakeTower(3)
    tower.cross, tower.num_placeholders = True, lambda num_tokens: 1  # type: ignore[method-assign]
    slots, tokens = MediaSlots(tower.tower), np.array([5, I, 6, 7, I, I, 8, 9], np.int32)
    media = tuple(
        Media(name * 32, start, 1, PIXELS, num_states=3)
        for name, start in ((b"a", 1), (b"b", 4), (b"c", 5))
    )
    assert slots.enter(2, media, tokens) == "" and slots.enter(0, (), tokens) == ""

    def seen(*parts: tuple[int, int, int]) -> list[tuple[bytes, list[int]]]:
        return [
            (b"".join(digest[:1] for digest in some.key), some.places.tolist())
            for some in slots.seen(rows(*parts))
        ]

    assert seen((0, 0, 2), (2, 0, 8)) == [(b"a", [3, 4, 5]), (b"b", [6]), (b"bc", [7, 8, 9])]
    assert seen((2, 2, 1)) == [(b"a", [0])] and seen((2, 9, 2)) == [(b"bc", [0, 1])]
    assert seen((2, 0, 1)) == [] and slots.rows(rows((2, 0, 8))) == ()
    assert len(slots.needed(np.full(3, 8))) == 3, "to the end of the sequence"
    slots.release(np.array([2]))
    assert seen((2, 2, 1)) == [] and not slots.needed(np.zeros(3, np.int64))
    bare = msgspec.structs.replace(media[0], num_states=0)
    assert "attention to images" in slots.enter(2, (bare,), tokens)
