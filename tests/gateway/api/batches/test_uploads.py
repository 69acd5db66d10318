"""Large files in parts, as OpenAI's client sends them."""

from __future__ import annotations

import openai
import pytest

from tests.fakes.gateway_app import error_of, site


def test_an_upload_with_openais_client() -> None:
    with site() as here:

        async def main() -> None:
            own = openai.AsyncOpenAI(
                api_key="none",
                base_url="http://localhost/v1",
                http_client=here.client,
                max_retries=0,
            )
            file = await own.uploads.upload_file_chunked(
                file=b"abcdefgh",
                filename="in.jsonl",
                bytes=8,
                mime_type="application/jsonl",
                purpose="batch",
                part_size=3,
            )
            assert file.status == "completed" and file.file is not None
            assert (await own.files.content(file.file.id)).content == b"abcdefgh"
            started = await own.uploads.create(
                filename="f", bytes=3, mime_type="text/plain", purpose="user_data"
            )
            assert (await own.uploads.cancel(started.id)).status == "cancelled"
            with pytest.raises(openai.BadRequestError, match="cancelled"):
                await own.uploads.parts.create(started.id, data=b"abc")

        here.run(main)


def test_what_is_no_upload_is_refused_by_name() -> None:
    with site(max_file_bytes=1024) as here:
        good = {"filename": "f", "bytes": 3, "mime_type": "text/plain", "purpose": "batch"}
        large = here.post("/v1/uploads", good | {"bytes": 2000})
        assert large.status_code == 413 and error_of(large)["param"] == "bytes"
        assert error_of(here.post("/v1/uploads", good | {"purpose": "x"}))["param"] == "purpose"
        for path in ("parts", "cancel"):
            missing = here.post(f"/v1/uploads/upload_x/{path}")
            assert missing.status_code == 404 and error_of(missing)["code"] == "upload_not_found"
        upload = here.post("/v1/uploads", good).json()
        path = f"/v1/uploads/{upload['id']}/complete"
        assert error_of(here.post(path, {"part_ids": ["part_1"]}))["param"] == "part_ids"
