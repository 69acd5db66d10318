"""Forms with recordings."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.gateway_app import Site, error_of, site
from tests.fakes.gateway_engine import MODEL as MODEL_NAME

PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")
MODEL = {"model": "m"}


def refused(here: Site, path: str, **sent: Any) -> tuple[int, str | None, str | None]:
    answer = here.request("POST", path, **sent)
    error = error_of(answer)
    return answer.status_code, error["code"], error["param"]


@pytest.mark.row("F18.18", "F18.19")
def test_what_is_no_recording() -> None:
    with site(max_audio_clip_filesize_mb=1) as here:
        file = ("../../x\0.wav", b"RIFF", "audio/wav")
        for path in PATHS:
            lacking = (400, "missing_required_parameter", "file")
            assert here.post(path, MODEL).status_code == 415
            assert refused(here, path, data=MODEL, files={"other": file}) == lacking
            field = {"file": (None, "a text"), "model": (None, "m")}
            assert refused(here, path, files=field) == lacking
            empty = ("a.wav", b"", "audio/wav")
            assert refused(here, path, data=MODEL, files={"file": empty})[::2] == (400, "file")
            several = [("file", file), ("file", file)]
            assert refused(here, path, data=MODEL, files=several) == (400, "invalid_value", "file")
            for size in (2**20 + 1, 2**21):
                large = {"file": ("a.wav", b"x" * size, "audio/wav")}
                assert refused(here, path, data=MODEL, files=large) == (
                    *(413, "request_too_large"),
                    "file",
                )
            assert refused(here, path, files={"file": file}) == (
                *(400, "missing_required_parameter"),
                "model",
            )
            # The model of the site writes texts alone.
            answer = here.request("POST", path, data={"model": MODEL_NAME}, files={"file": file})
            error = error_of(answer)
            assert (answer.status_code, error["param"]) == (400, "model")
            assert "does not transcribe speech" in error["message"]
