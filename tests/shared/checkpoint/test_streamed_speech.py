"""Silence around recordings, as mistral-common has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mistral_common.tokens.tokenizers.audio import (
    AudioConfig,
    AudioSpectrogramConfig,
    TranscriptionFormat,
)

from baton.checkpoint.streamed_speech import read_streamed_speech


@pytest.mark.row("A12")
def test_it_is_that_of_the_published_tokenizer(tmp_path: Path) -> None:
    for delay, left in ((480, 32), (240, 16), (2400, 32)):
        audio = AudioConfig(
            sampling_rate=16_000,
            frame_rate=12.5,
            encoding_config=AudioSpectrogramConfig(128, 160, 400),
            transcription_format=TranscriptionFormat.STREAMING,
            transcription_delay_ms=float(delay),
            streaming_look_ahead_ms=2.5,
            streaming_look_back_ms=52.5,
            streaming_n_left_pad_tokens=left,
        )
        (tmp_path / "tekken.json").write_text(
            json.dumps({"audio": {"streaming_n_left_pad_tokens": left}})
        )
        config = {"default_num_delay_tokens": audio.get_num_delay_tokens()}
        found = read_streamed_speech(tmp_path, config)
        assert found == (audio.n_left_pad_tokens, audio.get_num_delay_tokens())
        assert found.right == audio.n_right_pad_tokens()


def test_what_files_do_not_say(tmp_path: Path) -> None:
    found = read_streamed_speech(tmp_path, {})
    assert found == (32, 6) and (found.right, found.num_pads) == (17, 38)
