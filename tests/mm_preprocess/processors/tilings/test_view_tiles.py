"""The whole image and its tiles, as patches."""

from __future__ import annotations

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.tilings.view_tiles import ViewTiles
from tests.support.tiny_dual_encoders import picture


def test_an_image_of_a_tile_is_not_cut() -> None:
    """A wide one is, into at least two; gray is above and below it."""
    process = ViewTiles(Colors(), 16, 8, 2, 2, 6, (127, 127, 127), 3, newlines=False)
    small, wide = process(picture(8, 8)), process(picture(32, 8))
    assert small.grid == (1, 1, 1) and small.pixels.shape == (64, 12)
    assert wide.grid == (1, 1, 4) and wide.pixels.shape == (64 + 4 * 16, 12)
    assert (wide.pixels[:24] == 127).all() and not (wide.pixels[24:40] == 127).all()
    assert (small.num_tokens, wide.num_tokens) == (4 + 1, 4 + 4 + 1)
