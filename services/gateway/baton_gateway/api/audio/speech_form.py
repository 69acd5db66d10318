"""Forms with a recording."""

from __future__ import annotations

from typing import TypeVar

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from baton.errors import InvalidRequest
from baton_gateway.config import Config
from baton_gateway.http.body import build
from baton_gateway.http.errors import invalid, missing
from baton_gateway.http.form_reader import read_form
from baton_gateway.schemas.audio.speech_request import SpeechRequest, form_fields

_FILE = "file"
B = TypeVar("B", bound=SpeechRequest)


async def read_speech(request: Request, model: type[B]) -> tuple[B, bytes]:
    """Receive a form: its fields as `model`, and the content of its file.

    Raises `InvalidRequest`, and the errors of `read_form`.
    """
    config: Config = request.app.state.config
    most = config.max_audio_clip_filesize_mb << 20
    form = await read_form(request, most, _FILE, max_files=2)
    try:
        fields = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
        file = _file(form)
        body = build(form_fields(fields), model, strict=config.strict_fields)
        body.check()
        data = await file.read(most + 1)
    finally:
        await form.close()
    if not data:
        raise InvalidRequest("The file is empty. Send a recording.", param=_FILE)
    if len(data) > most:
        raise InvalidRequest(
            f"The file is too large. Send at most {most} bytes.",
            code="request_too_large",
            param=_FILE,
            status=413,
        )
    return body, data


def _file(form: FormData) -> UploadFile:
    """The one file of a form. Raises `InvalidRequest`."""
    files = form.getlist(_FILE)
    if len(files) > 1:
        raise invalid(_FILE, "Invalid 'file': there are several. Send one recording.")
    if not files or not isinstance(files[0], UploadFile):
        raise missing(_FILE)
    return files[0]
