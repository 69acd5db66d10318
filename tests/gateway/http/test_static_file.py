from __future__ import annotations

from starlette.requests import Request

from baton_gateway.http.static_file import POLICY, static_file


def fetch(**headers: str) -> Request:
    raw = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": raw})


def test_a_current_copy_is_not_sent_again() -> None:
    first = static_file(fetch(), "baton_gateway.static", "page.js")
    assert first.headers["content-security-policy"] == POLICY
    assert first.media_type == "text/javascript; charset=utf-8" and first.body
    again = static_file(
        fetch(if_none_match=first.headers["etag"]), "baton_gateway.static", "page.js"
    )
    assert again.status_code == 304 and not again.body
