"""Settings that are JSON objects."""

from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton_mm_preprocess.config import Config


def test_what_an_operator_may_set() -> None:
    config = Config.load(
        [
            *("--limit-mm-per-prompt", '{"image": 4, "video": {"count": 1}, "audio": 2}'),
            *("--media-io-kwargs", '{"video": {"num_frames": 6}}'),
            "--mm-processor-kwargs",
            '{"max_pixels": 9, "videos_kwargs": {"size": {"shortest_edge": 4}}}',
        ]
    )
    assert config.limits == {"image": 4, "video": 1, "audio": 2}
    assert config.kwargs.image == {"max_pixels": 9} and config.kwargs.frames == {"num_frames": 6}
    assert config.kwargs.video == {"max_pixels": 9, "size": {"shortest_edge": 4}}
    assert Config.load([]).limits == {} and not config.kwargs.sound
    sound = Config.load(["--mm-processor-kwargs", '{"use_audio_in_video": true}']).kwargs
    assert sound.sound and sound.video == {}


def test_what_is_refused_at_the_start() -> None:
    for name, value, words in (
        ("limit-mm-per-prompt", '{"sound": 1}', "numbers of image, video, audio"),
        ("limit-mm-per-prompt", "{", "expected a JSON object"),
        ("media-io-kwargs", '{"image": {}}', "num_frames"),
        ("media-io-kwargs", '{"video": {"fps": 1, "num_frames": 2}}', "num_frames"),
        ("media-io-kwargs", '{"video": {"fps": 0}}', "num_frames"),
        ("mm-processor-kwargs", '{"max_pixel": 9}', "max_pixel cannot be set"),
        ("mm-processor-kwargs", '{"images_kwargs": 3}', "expected objects"),
        ("mm-processor-kwargs", '{"use_audio_in_video": 1}', "expected true or false"),
    ):
        with pytest.raises(SettingsError, match=words):
            Config.load([f"--{name}", value])
