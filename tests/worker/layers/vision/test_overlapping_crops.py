"""Windows of patches over crops that overlap."""

from __future__ import annotations

from baton_worker.layers.vision.overlapping_crops import windows_of


def test_windows_of_two_crops_leave_out_what_both_show() -> None:
    """Crops of 3 x 3 patches share one column: the whole image has 2 x 2 windows, and what they
    show, 3 x 4 patches, has 2 x 2."""
    windows = windows_of(3, (1, 1), 1, 2).tolist()
    assert windows[:4] == [[0, 1, 3, 4], [2, -1, 5, -1], [6, 7, -1, -1], [8, -1, -1, -1]]
    assert windows[4:] == [[9, 10, 12, 13], [19, 20, 22, 23], [15, 16, -1, -1], [25, 26, -1, -1]]
