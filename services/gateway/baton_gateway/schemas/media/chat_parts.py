"""Checks the content parts of a chat that contain media or name a media file."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from baton_gateway.generation.chat_prompt import FILE_SCHEME
from baton_gateway.http.errors import invalid, missing, shorten, wrong_type

Part = dict[str, Any]

_ROLES = ("user", "tool")
"""Roles whose messages may contain media."""
_FILE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DETAILS = ("auto", "low", "high", "original")
_TENSOR = "data:application/octet-stream;base64,"
_AUDIO_FORMATS = ("wav", "mp3", "flac", "ogg", "opus", "webm", "m4a", "mp4")
"""OpenAI accepts the first two here, and most others for transcriptions."""
_EXAMPLES = {
    "image": "data:image/png;base64,...",
    "video": "data:video/mp4;base64,...",
    "audio": "data:audio/wav;base64,...",
}
_PLURALS = {"image": "images", "video": "videos", "audio": "audio"}


def check_media(part: Part, kind: str, role: str, param: str) -> Part:
    """Convert a part with a type of `MEDIA` to the form of chat templates: under its type, an
    object with the `url` of its file.

    Raises:
        InvalidRequest: the part is malformed, or messages of this role cannot contain it.
    """
    modality, check = MEDIA[kind]
    if role not in _ROLES:
        raise invalid(
            f"{param}.type",
            f"Invalid value: a message of the role '{role}' cannot hold {_PLURALS[modality]}. Put "
            "them into messages of the role 'user'.",
        )
    return check(part, kind, param)


def _image(part: Part, kind: str, param: str) -> Part:
    """An image in the form of chat, `{"image_url": {"url": ...}}`, of the Responses API,
    `{"image_url": ...}` or `{"file_id": ...}`, or of assistants, `{"image_file": {"file_id":
    ...}}`."""
    place, image = f"{param}.image_url", part.get("image_url")
    if kind == "input_image":
        image = {name: part.get(name) for name in ("file_id", "detail")} | {"url": image}
    elif kind == "image_file":
        place, image = f"{param}.image_file", part.get("image_file")
    image = _object(image, place)
    if image.get("detail") is not None and image["detail"] not in _DETAILS:
        raise _unknown(image["detail"], _DETAILS, f"{place}.detail")
    return {"type": "image_url", "image_url": {"url": _url(image, place, "image")}}


def _embeds(part: Part, kind: str, param: str) -> Part:
    """Embeddings of an image (vLLM): `{"image_embeds": "<base64>"}`."""
    place = f"{param}.image_embeds"
    text = _base64(part.get("image_embeds"), place, "of one tensor", "invalid_base64_image_embeds")
    return {"type": kind, kind: {"url": f"{_TENSOR}{text}"}}


def _video(part: Part, kind: str, param: str) -> Part:
    place = f"{param}.video_url"
    return {"type": kind, kind: {"url": _url(_object(part.get(kind), place), place, "video")}}


def _audio_url(part: Part, kind: str, param: str) -> Part:
    """A sound (vLLM): `{"audio_url": {"url": ...}}`, or with `{"file_id": ...}` in it."""
    place = f"{param}.audio_url"
    return {"type": kind, kind: {"url": _url(_object(part.get(kind), place), place, "audio")}}


def _input_audio(part: Part, kind: str, param: str) -> Part:
    """A sound (OpenAI): `{"input_audio": {"data": "<base64>", "format": "wav"}}`."""
    place = f"{param}.input_audio"
    audio = _object(part.get("input_audio"), place)
    if "format" not in audio:
        raise missing(f"{place}.format")
    if audio["format"] not in _AUDIO_FORMATS:
        raise _unknown(audio["format"], _AUDIO_FORMATS, f"{place}.format")
    text = _base64(audio.get("data"), f"{place}.data", "of a file", "invalid_value")
    return {"type": kind, kind: {"url": f"data:audio/{audio['format']};base64,{text}"}}


MEDIA: dict[str, tuple[str, Callable[[Part, str, str], Part]]] = {
    "image_url": ("image", _image),
    "input_image": ("image", _image),
    "image_file": ("image", _image),
    "image_embeds": ("image", _embeds),
    "video_url": ("video", _video),
    "audio_url": ("audio", _audio_url),
    "input_audio": ("audio", _input_audio),
}
"""Type of a part -> modality and check."""


def _object(value: object, place: str) -> Part:
    if value is None:
        raise missing(place)
    if not isinstance(value, dict):
        raise wrong_type(place, "an object", value)
    return value


def _base64(value: object, place: str, what: str, code: str) -> str:
    """Check the length of a base64 text, which the media preprocessor decodes."""
    if value is None:
        raise missing(place)
    if not isinstance(value, str):
        raise wrong_type(place, f"a base64 string {what}", value)
    if not value or not value.isascii():
        raise invalid(place, f"Invalid '{place}': expected a base64 string {what}.", code)
    return value


def _url(part: Part, place: str, kind: str) -> str:
    """The URL of media; it names an uploaded file if there is a `file_id`."""
    url, file = part.get("url"), part.get("file_id")
    if url is None and file is not None:
        if not isinstance(file, str) or not _FILE_ID.fullmatch(file):
            raise invalid(f"{place}.file_id", f"Invalid '{place}.file_id': {shorten(file)}.")
        return f"{FILE_SCHEME}{file}"
    if not isinstance(url, str):
        raise wrong_type(f"{place}.url", "a string", url)
    if not url or not url.isascii():
        raise invalid(
            place, f"Invalid '{place}.url': expected {_EXAMPLES[kind]}", f"invalid_{kind}_url"
        )
    return url


def _unknown(value: object, supported: tuple[str, ...], place: str) -> Exception:
    names = ", ".join(f"'{name}'" for name in supported)
    return invalid(place, f"Invalid value: {shorten(value)}. Supported values are: {names}.")
