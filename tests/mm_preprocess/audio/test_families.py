"""Models that take audio."""

from __future__ import annotations

import pytest

from baton.errors import ModelError
from baton_mm_preprocess.audio.families import AUDIO_FAMILIES, AudioFamily, plain
from baton_mm_preprocess.audio.readers import AudioFiles, whisper_chunks

FAMILY = AudioFamily(whisper_chunks(2), "<sound>", marker="<mark>")


def _encode(text: str) -> list[int]:
    return {"<sound>": [7], "<mark>": [8]}.get(text, [1, 2])


def test_tokens_of_the_config_go_first() -> None:
    files = AudioFiles({"audio_token_id": 9}, {})
    assert FAMILY.audio_token(files, _encode) == 9
    assert FAMILY.audio_token(AudioFiles({"audio_token_index": 5}, {}), _encode) == 5
    assert FAMILY.audio_token(AudioFiles({}, {}), _encode) == 7
    assert FAMILY.marker_token(files, _encode) == 8
    assert AudioFamily(whisper_chunks(2), "<sound>").marker_token(files, _encode) == 9
    with pytest.raises(ModelError, match="no token <none>"):
        AudioFamily(whisper_chunks(2), "<none>").audio_token(AudioFiles({}, {}), _encode)


def test_every_family_reads_the_defaults_of_its_extractor() -> None:
    for name, family in AUDIO_FAMILIES.items():
        processor = family.reader(AudioFiles({}, {}))
        assert processor.rate == 16_000 and family.token, name
    assert plain(3) == [3]
