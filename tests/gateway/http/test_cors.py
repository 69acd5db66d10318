"""Pages of listed origins may use the server; a browser asks for it beforehand."""

from __future__ import annotations

import httpx
import pytest

from baton.errors import SettingsError
from baton_gateway.config import Config
from baton_gateway.http.cors import CorsPolicy
from tests.fakes.gateway_app import Site, chat, error_of, site

CHAT = "/v1/chat/completions"
APP = "https://app.example"
ASK = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


def preflight(here: Site, origin: str) -> httpx.Response:
    async def send() -> httpx.Response:
        return await here.client.request("OPTIONS", CHAT, headers={"origin": origin, **ASK})

    response: httpx.Response = here.run(send)
    return response


def test_a_listed_origin_may_use_the_server() -> None:
    """Each browser request as it is sent: asked beforehand, whole, streamed, refused."""
    with site(allowed_origins=f"{APP}, http://localhost:3000") as here:
        asked = preflight(here, APP)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == APP
        assert (
            asked.headers["access-control-allow-headers"] == ASK["access-control-request-headers"]
        )
        assert "POST" in asked.headers["access-control-allow-methods"]
        page = {"origin": APP, "sec-fetch-site": "cross-site"}
        for fields in ({}, {"stream": True}, {"n": 0}):
            response = here.post(CHAT, chat(**fields), headers=page)
            assert response.status_code == (400 if "n" in fields else 200)
            assert response.headers["access-control-allow-origin"] == APP
            assert "x-request-id" in response.headers["access-control-expose-headers"]
            assert "origin" in response.headers["vary"].lower()


def test_others_may_not() -> None:
    with site(allowed_origins=APP) as here:
        for origin in ("https://evil.example", "http://app.example", "null"):
            refused = preflight(here, origin)
            assert refused.status_code == 400
            assert "access-control-allow-origin" not in refused.headers
            page = {"origin": origin, "sec-fetch-site": "cross-site"}
            response = here.post(CHAT, chat(), headers=page)
            assert error_of(response)["code"] == "cross_origin"
            assert "access-control-allow-origin" not in response.headers


def test_no_origin_is_allowed_by_default(shared_site: Site) -> None:
    asked = preflight(shared_site, APP)
    assert asked.status_code == 405 and "access-control-allow-origin" not in asked.headers


def test_a_preflight_needs_no_key_but_the_request_does() -> None:
    with site(allowed_origins="*", api_key="sk-12345678") as here:
        assert preflight(here, APP).status_code == 200
        response = here.post(CHAT, chat(), headers={"origin": APP})
        assert response.status_code == 401
        assert response.headers["access-control-allow-origin"] == "*"


def test_no_page_changes_something_for_everybody() -> None:
    with site(allowed_origins="*") as here:
        response = here.post("/reset_prefix_cache", headers={"origin": APP})
        assert error_of(response)["code"] == "operator_only"


def test_lists_are_written_as_for_vllm_too() -> None:
    policy = CorsPolicy.of(Config(allowed_origins=f'["{APP}"]', allowed_methods="GET, POST"))
    assert policy.origins == (APP,) and policy.methods == ("GET", "POST")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"allowed_origins": "app.example"}, "'app.example' is no origin"),
        ({"allowed_origins": f"{APP}/page"}, "is no origin"),
        ({"allowed_origins": "http://[/"}, "is no origin"),
        ({"allowed_origins": "[1]"}, "Cannot read the list"),
        ({"allowed_origins": "*", "allow_credentials": True}, "by name"),
    ],
)
def test_what_cannot_work_stops_the_start(settings: dict[str, str | bool], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        CorsPolicy.of(Config.model_validate(settings))
