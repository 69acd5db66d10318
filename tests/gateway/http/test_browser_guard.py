"""Pages of other sites change nothing through a visitor's browser."""

from __future__ import annotations

import pytest

from tests.fakes.gateway_app import Site, chat, error_of, site

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"sec-fetch-site": "same-origin", "origin": "https://proxy.example"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"origin": "http://localhost"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site", "origin": "http://localhost"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:9999"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
    ],
)
def test_where_a_request_comes_from(
    shared_site: Site, headers: dict[str, str], status: int
) -> None:
    response = shared_site.post(CHAT, chat(), headers=headers)
    assert response.status_code == status
    assert status == 200 or error_of(response)["code"] == "cross_origin"


def test_reading_is_no_change(shared_site: Site) -> None:
    assert shared_site.get("/v1/models", headers={"origin": "null"}).status_code == 200


def test_who_sends_a_key_is_no_victim_of_a_page() -> None:
    with site(api_key="one") as here:
        headers = {"authorization": "Bearer one", "origin": "http://app.example"}
        assert here.post(CHAT, chat(), headers=headers).status_code == 200
