"""Rules of LLaVA-NeXT's tiles, on which mm-preprocess and the worker must agree."""

from __future__ import annotations

from baton.anyres import best_resolution, limited, unpadded, unpadded_range


def test_the_resolution_keeps_most_of_an_image_and_is_the_smallest_of_these() -> None:
    assert best_resolution((100, 50), [(30, 60), (60, 30), (60, 60)]) == (60, 30)
    assert best_resolution((10, 10), [(60, 60), (30, 30), (60, 30)]) == (30, 30)


def test_padding_is_cut_on_both_sides_of_one_axis() -> None:
    assert unpadded_range((100, 200), (48, 48)) == (12, 36, 0)
    assert unpadded_range((200, 100), (48, 48)) == (12, 36, 1)
    assert unpadded((100, 200), (48, 48)) == (24, 48)
    assert unpadded((200, 100), (48, 48)) == (48, 24)
    assert unpadded((100, 100), (48, 48)) == (48, 48)


def test_an_odd_rest_of_padding_stays() -> None:
    assert unpadded((97, 200), (24, 24)) == (12, 24)
    assert unpadded((107, 200), (24, 24)) == (12, 24)
    assert unpadded((115, 200), (24, 24)) == (14, 24)


def test_a_grid_is_limited_only_where_it_is_clearly_too_large() -> None:
    assert limited((200, 200), 27, 0) == (200, 200)
    assert limited((81, 81), 27, 9) == (81, 81)
    assert limited((85, 85), 27, 9) == (85, 85)
    assert limited((162, 162), 27, 9) == (81, 81)


def test_hyperclova_x_does_not_round_products_that_are_nearly_integers() -> None:
    assert unpadded((55, 66), (18, 18)) == (16, 18)
    assert unpadded((55, 66), (18, 18), rounded=False) == (14, 18)
