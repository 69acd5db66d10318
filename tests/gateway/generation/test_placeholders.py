"""Markers of images, and what takes their places."""

from __future__ import annotations

import msgspec
import pytest

from baton.errors import InvalidRequest
from baton.protocol import Blob, PreparedMedia
from baton.protocol.packed_tokens import PackedTokens
from baton.protocol.token_columns import pack
from baton_gateway.generation.placeholders import accompanied, alone, expand

PIXELS = Blob("float32", (1,), bytes(4))
MARK = 9


def item(name: bytes, *tokens: int) -> PreparedMedia:
    return PreparedMedia(name, pack(tokens), PIXELS, MARK, (1, 2, 3), ((0, 1),))


def test_each_marker_becomes_the_tokens_of_its_item() -> None:
    """Longer or shorter than the one before; tokens that frame an image belong to it."""
    ids = PackedTokens.of([1, MARK, 2, MARK, MARK])
    grown, media = expand(ids, [item(b"a", 7, 9, 9, 8), item(b"b", 9), item(b"a", 9, 9)])
    assert list(grown) == [1, 7, 9, 9, 8, 2, 9, 9, 9]
    assert [(m.digest, m.start, m.length, m.grid) for m in media] == [
        (b"a", 1, 4, (1, 2, 3)),
        (b"b", 6, 1, (1, 2, 3)),
        (b"a", 7, 2, (1, 2, 3)),
    ]
    assert {m.spans for m in media} == {((0, 1),)}


def test_a_prompt_whose_tokens_all_see_one_another_is_of_its_own() -> None:
    """Its image has another name beside another text; a text before the image is refused."""
    seen = msgspec.structs.replace(item(b"a", 9, 9), whole_prompt=True)
    names = set[bytes]()
    for text in ((1, 2), (1, 3), (1, 2)):
        grown, [media] = expand(PackedTokens.of([MARK, *text]), [seen])
        assert list(grown) == [9, 9, *text]
        assert (media.start, media.length, media.spans) == (0, 2, ((0, 4),))
        names.add(media.digest)
    assert len(names) == 2 and all(len(name) == 32 for name in names)
    with pytest.raises(InvalidRequest, match="1 tokens before the image"):
        expand(PackedTokens.of([1, MARK]), [seen])


def test_a_sound_stands_among_the_tokens_of_its_video() -> None:
    heard = PreparedMedia(b"s", b"", PIXELS, grid=(1, 8, 0), num_within=2)
    ids = PackedTokens.of([1, MARK, 2, MARK])
    grown, media = expand(ids, [item(b"v", 7, 9, 6, 6, 8), heard, item(b"b", 9)])
    assert list(grown) == [1, 7, 9, 6, 6, 8, 2, 9]
    assert [(m.digest, m.start, m.length, m.num_within) for m in media] == [
        (b"v", 1, 5, 0),
        (b"s", 1, 5, 2),
        (b"b", 7, 1, 0),
    ]


@pytest.mark.parametrize("ids", [[1], [MARK, MARK]])
def test_a_template_that_writes_another_number_is_refused(ids: list[int]) -> None:
    with pytest.raises(InvalidRequest, match=f"written {ids.count(MARK)} placeholders for the 1 "):
        expand(PackedTokens.of(ids), [item(b"a", 9)])


def test_an_item_that_goes_along_with_tokens_to_come() -> None:
    heard = PreparedMedia(b"s", b"", PIXELS, grid=(1, 64, 0), num_alongside=8)
    ids, media = accompanied((1, 32, 32), heard)
    assert list(ids) == [1, 32, 32] and (media.start, media.length, media.alongside) == (0, 8, True)


def test_an_item_that_is_a_sequence() -> None:
    ids, media = alone(item(b"a", 0, 0))
    assert list(ids) == [0, 0] and (media.start, media.length) == (0, 2)
