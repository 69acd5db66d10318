"""Content parts with media."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.media.chat_parts import MEDIA, check_media

AUDIO = {"data": "AAAA", "format": "mp3"}


def test_a_part_is_the_url_of_its_file() -> None:
    for part, found in (
        ({"image_url": {"url": "data:a", "detail": "low"}}, {"image_url": {"url": "data:a"}}),
        ({"input_image": 1, "image_url": "data:a"}, {"image_url": {"url": "data:a"}}),
        ({"input_image": 1, "file_id": "file-1"}, {"image_url": {"url": "file_id:file-1"}}),
        ({"image_file": {"file_id": "file-1"}}, {"image_url": {"url": "file_id:file-1"}}),
        ({"video_url": {"url": "data:v"}}, {"video_url": {"url": "data:v"}}),
        ({"audio_url": {"url": "http://a/b.mp3"}}, {"audio_url": {"url": "http://a/b.mp3"}}),
        ({"audio_url": {"file_id": "file-1"}}, {"audio_url": {"url": "file_id:file-1"}}),
        ({"input_audio": AUDIO}, {"input_audio": {"url": "data:audio/mp3;base64,AAAA"}}),
        (
            {"image_embeds": "AAAA"},
            {"image_embeds": {"url": "data:application/octet-stream;base64,AAAA"}},
        ),
    ):
        kind = next(iter(part))
        [name] = found
        assert check_media(part, kind, "user", "p") == {"type": name, **found}


def test_what_is_no_audio_is_named() -> None:
    for part, code, param in (
        ({"type": "input_audio"}, "missing_required_parameter", "p.input_audio"),
        ({"input_audio": "AAAA"}, "invalid_type", "p.input_audio"),
        ({"input_audio": {"data": "AAAA"}}, "missing_required_parameter", "p.input_audio.format"),
        ({"input_audio": AUDIO | {"format": "exe"}}, None, "p.input_audio.format"),
        ({"input_audio": AUDIO | {"data": ""}}, "invalid_value", "p.input_audio.data"),
        ({"input_audio": AUDIO | {"data": "\u00e9"}}, "invalid_value", "p.input_audio.data"),
        ({"input_audio": AUDIO | {"data": 5}}, "invalid_type", "p.input_audio.data"),
        ({"input_audio": {"format": "wav"}}, "missing_required_parameter", "p.input_audio.data"),
        ({"audio_url": "http://x"}, "invalid_type", "p.audio_url"),
        ({"audio_url": {"url": "data:\u00e9"}}, "invalid_audio_url", "p.audio_url"),
        ({"audio_url": {"url": ""}}, "invalid_audio_url", "p.audio_url"),
        ({"audio_url": {"url": 5}}, "invalid_type", "p.audio_url.url"),
        ({"audio_url": {"file_id": "../x"}}, None, "p.audio_url.file_id"),
    ):
        kind = "audio_url" if "audio_url" in part else "input_audio"
        error = _refused(part, kind)
        assert (error.code, error.param) == (code or "invalid_value", param), part


def test_only_users_and_tools_send_media() -> None:
    for kind, (modality, _) in MEDIA.items():
        error = _refused({}, kind, "system")
        assert error.param == "p.type" and modality in error.message


def _refused(part: dict[str, Any], kind: str, role: str = "user") -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        check_media(part, kind, role, "p")
    return caught.value
