"""Checks the content parts of a chat that hold media, or name a file with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from baton_gateway.generation.chat_prompt import FILE_SCHEME
from baton_gateway.http.errors import invalid, missing, shorten, wrong_type

Part = dict[str, Any]

_ROLES = ("user", "tool")
"""Roles whose messages may hold media."""
_FILE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DETAILS = ("auto", "low", "high", "original")
_TENSOR = "data:application/octet-stream;base64,"
_AUDIO_FORMATS = ("wav", "mp3", "flac", "ogg", "opus", "webm", "m4a", "mp4")
"""OpenAI takes the first two here, and most of the others for transcriptions."""
_EXAMPLES = {
    "image": "data:image/png;base64,...",
    "video": "data:video/mp4;base64,...",
    "audio": "data:audio/wav;base64,...",
}
_PLURALS = {"image": "images", "video": "videos", "audio": "audio"}


def check_media(part: Part, kind: str, role: str, param: str) -> Part:
    """Return a part of a type of `MEDIA` as a chat template's author knows it: under its type, an
    object with the `url` of its file.

    Raises:
        InvalidRequest: the part is malformed, or a message of this role cannot hold it.
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
    """An image as chat has it, `{"image_url": {"url": ...}}`, as the Responses API has it,
    `{"image_url": ...}` or `{"file_id": ...}`, or as assistants have it, `{"image_file":
    {"file_id": ...}}`."""
    place, given = f"{param}.image_url", part.get("image_url")
    if kind == "input_image":
        given = {name: part.get(name) for name in ("file_id", "detail")} | {"url": given}
    elif kind == "image_file":
        place, given = f"{param}.image_file", part.get("image_file")
    given = _object(given, place)
    if given.get("detail") is not None and given["detail"] not in _DETAILS:
        raise _unknown(given["detail"], _DETAILS, f"{place}.detail")
    return {"type": "image_url", "image_url": {"url": _url(given, place, "image")}}


def _embeds(part: Part, kind: str, param: str) -> Part:
    """Embeddings of an image, as vLLM has them: `{"image_embeds": "<base64>"}`."""
    place = f"{param}.image_embeds"
    text = _base64(part.get("image_embeds"), place, "of one tensor", "invalid_base64_image_embeds")
    return {"type": kind, kind: {"url": f"{_TENSOR}{text}"}}


def _video(part: Part, kind: str, param: str) -> Part:
    place = f"{param}.video_url"
    return {"type": kind, kind: {"url": _url(_object(part.get(kind), place), place, "video")}}


def _audio_url(part: Part, kind: str, param: str) -> Part:
    """A sound as vLLM has it: `{"audio_url": {"url": ...}}`, or `{"file_id": ...}` in it."""
    place = f"{param}.audio_url"
    return {"type": kind, kind: {"url": _url(_object(part.get(kind), place), place, "audio")}}


def _input_audio(part: Part, kind: str, param: str) -> Part:
    """A sound as OpenAI has it: `{"input_audio": {"data": "<base64>", "format": "wav"}}`."""
    place = f"{param}.input_audio"
    given = _object(part.get("input_audio"), place)
    if "format" not in given:
        raise missing(f"{place}.format")
    if given["format"] not in _AUDIO_FORMATS:
        raise _unknown(given["format"], _AUDIO_FORMATS, f"{place}.format")
    text = _base64(given.get("data"), f"{place}.data", "of a file", "invalid_value")
    return {"type": kind, kind: {"url": f"data:audio/{given['format']};base64,{text}"}}


MEDIA: dict[str, tuple[str, Callable[[Part, str, str], Part]]] = {
    "image_url": ("image", _image),
    "input_image": ("image", _image),
    "image_file": ("image", _image),
    "image_embeds": ("image", _embeds),
    "video_url": ("video", _video),
    "audio_url": ("audio", _audio_url),
    "input_audio": ("audio", _input_audio),
}
"""Modality of each type of part, and what checks it."""


def _object(given: object, place: str) -> Part:
    if given is None:
        raise missing(place)
    if not isinstance(given, dict):
        raise wrong_type(place, "an object", given)
    return given


def _base64(given: object, place: str, what: str, code: str) -> str:
    """A text that may be base64, which the media preprocessor decodes."""
    if given is None:
        raise missing(place)
    if not isinstance(given, str):
        raise wrong_type(place, f"a base64 string {what}", given)
    if not given or not given.isascii():
        raise invalid(place, f"Invalid '{place}': expected a base64 string {what}.", code)
    return given


def _url(given: Part, place: str, kind: str) -> str:
    """The URL of media, which names an uploaded file if there is a `file_id`."""
    url, file = given.get("url"), given.get("file_id")
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
