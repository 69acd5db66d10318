"""Errors that name their modality."""

from __future__ import annotations

from baton_mm_preprocess.media_errors import empty, too_large


def test_codes_and_words() -> None:
    assert (too_large(9, "video").code, empty("image").code) == (
        "video_too_large",
        "empty_image_file",
    )
    assert "The video is larger than the 9 bytes" in too_large(9, "video").message
