"""Forms: bounded while they come, and nothing is left of one that is refused."""

from __future__ import annotations

from typing import Any

from baton_gateway.durable.file_store import CHUNK_BYTES
from tests.fakes.gateway_app import error_of, site


def test_uploads_are_bounded_and_must_be_forms() -> None:
    with site(max_file_bytes=1024, max_stored_file_bytes=2000) as here:
        purpose = {"purpose": "batch"}

        def send(content: bytes, **more: Any) -> Any:
            return here.request("POST", "/v1/files", data=purpose, files={"file": content}, **more)

        assert send(b"x" * 1024).status_code == 200
        large = send(b"x" * (CHUNK_BYTES + 2000))
        assert large.status_code == 413 and error_of(large)["code"] == "request_too_large"
        full = send(b"x" * 1024)
        assert full.status_code == 413 and len(here.get("/v1/files").json()["data"]) == 1
        none = here.request("POST", "/v1/files", data=purpose, files={"other": b"x"})
        assert error_of(none)["param"] == "file"
        assert here.post("/v1/files", {"purpose": "batch"}).status_code == 415
        kind = {"content-type": "multipart/form-data; boundary=x"}
        broken = here.request("POST", "/v1/files", content=b"no form", headers=kind)
        assert broken.status_code == 400 and "form" in error_of(broken)["message"]
        bare = here.request(
            "POST", "/v1/files", content=b"", headers={"content-type": "multipart/form-data"}
        )
        assert bare.status_code == 400
