from __future__ import annotations

import time

from tests.fakes.gateway_app import site


def test_a_file_is_described_and_expires() -> None:
    with site() as here:
        fields = {
            "purpose": "batch",
            "expires_after[anchor]": "created_at",
            "expires_after[seconds]": "3600",
        }
        sent = here.request("POST", "/v1/files", data=fields, files={"file": ("in.jsonl", b"abc")})
        file = sent.json()
        assert file["object"] == "file" and file["bytes"] == 3 and file["status"] == "processed"
        assert 3590 < file["expires_at"] - time.time() < 3610
        assert here.get(f"/v1/files/{file['id']}").json() == file
        content = here.get(f"/v1/files/{file['id']}/content")
        assert content.content == b"abc" and content.headers["content-length"] == "3"
        gone = here.request("DELETE", f"/v1/files/{file['id']}").json()
        assert gone == {"id": file["id"], "object": "file", "deleted": True}
        assert here.get("/v1/files").json()["data"] == []
