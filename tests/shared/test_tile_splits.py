"""Tiles beside the whole image, by hand."""

from __future__ import annotations

from baton.tile_splits import TileSplits

RULES = TileSplits(512, 16, 2, 2, 10, 64, 256, 2.0)


def test_a_small_image_is_enlarged_and_whole() -> None:
    """To 64 embeddings of 32 x 32 pixels, in multiples of these."""
    assert RULES.grid((100, 300)) is None
    assert RULES.resized((100, 300)) == (160, 448)
    assert RULES.parts((100, 300)) == [(10, 28)]
    assert RULES.resized((3, 3000)) == (32, 3008), "no side is empty"


def test_a_large_image_has_tiles_in_the_closest_shape() -> None:
    """Of 1 x 2 and 2 x 4 more tiles, since it fills half of them."""
    assert RULES.grid((1000, 2000)) == (2, 4)
    assert RULES.resized((1000, 2000)) == (352, 704)
    assert RULES.parts((1000, 2000)) == [(32, 32)] * 8 + [(22, 44)]
    assert RULES.grid((720, 1100)) == (2, 3)
    assert RULES.grid((700, 1400)) == (1, 2), "which it does not fill"


def test_one_tile_is_no_tile() -> None:
    alone = TileSplits(512, 16, 2, 1, 1, 64, 256, 2.0)
    assert alone.grid((1000, 2000)) is None and len(alone.parts((1000, 2000))) == 1
