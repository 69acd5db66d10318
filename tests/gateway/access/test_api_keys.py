"""Authentication with API keys."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from fastapi.routing import APIRoute
from starlette.datastructures import Headers

from baton.errors import InvalidRequest, SettingsError
from baton.protocol import Submit
from baton_gateway import page
from baton_gateway.access.api_keys import ApiKey, ApiKeys, KeyLimits
from baton_gateway.api import ROUTERS
from baton_gateway.config import Config
from tests.fakes.gateway_app import (
    Site,
    chat,
    error_of,
    site,
)

KEY = "sk-baton-0123456789"
PROBES = {"/health", "/health/live", "/health/ready", "/livez", "/ping", "/readyz"}
PAGES = {"/", "/static/{name}"}


@pytest.fixture(scope="module")
def locked() -> Iterator[Site]:
    with site(api_key=f"other, {KEY}") as here:
        yield here


def _chat(here: Site, *headers: tuple[str, str | bytes]) -> tuple[int, str | None]:
    raw = [(k.encode(), v if isinstance(v, bytes) else v.encode()) for k, v in headers]
    response = here.post("/v1/chat/completions", chat(), headers=raw)
    assert KEY not in response.text
    return response.status_code, None if response.is_success else error_of(response)["code"]


@pytest.mark.parametrize("value", [f"Bearer {KEY}", f"bearer {KEY}", "BEARER other"])
def test_known_keys(locked: Site, value: str) -> None:
    """A03"""
    assert _chat(locked, ("authorization", value)) == (200, None)


def test_a_key_in_the_header_of_the_messages_api(locked: Site) -> None:
    assert _chat(locked, ("x-api-key", KEY)) == (200, None)
    assert _chat(locked, ("x-api-key", "else")) == (401, "invalid_api_key")
    twice = (("x-api-key", KEY), ("x-api-key", KEY))
    assert _chat(locked, *twice) == (401, "invalid_api_key")
    both = (("authorization", "Bearer else"), ("x-api-key", KEY))
    assert _chat(locked, *both) == (401, "invalid_api_key")


def test_no_key(locked: Site) -> None:
    """A01, A11"""
    assert _chat(locked) == (401, None)
    response = locked.get(f"/v1/models?api_key={KEY}&authorization=Bearer%20{KEY}")
    assert (response.status_code, error_of(response)["code"]) == (401, None)
    assert "provide your API key" in error_of(response)["message"]


@pytest.mark.parametrize(
    "value",
    [
        "Bearer wrong",
        f"Basic {KEY}",
        f"Bearer  {KEY}",
        "Bearer ",
        "Bearer",
        "",
        KEY,
        "Bearer é".encode(),
        "Bearer é".encode("latin-1"),
        b"Bearer \xff\xfe",
        "Bearer " + "x" * 100_000,
        f"Bearer {KEY[:-1]}",
        f"Bearer {KEY}x",
        f"Bearer {KEY.upper()}",
        f"Bearer other, {KEY}",
    ],
)
def test_wrong_keys(locked: Site, value: str | bytes) -> None:
    """A02, A03, A04, A05, A08"""
    assert _chat(locked, ("authorization", value)) == (401, "invalid_api_key")


def test_two_keys(locked: Site) -> None:
    """A06"""
    good = ("authorization", f"Bearer {KEY}")
    assert _chat(locked, good, good) == (401, "invalid_api_key")


def test_every_route_but_the_probes_and_the_page(locked: Site) -> None:
    """A17, X09"""
    routers = (*ROUTERS, page.router)
    routes = [r for router in routers for r in router.routes if isinstance(r, APIRoute)]
    paths = {r.path for r in routes}
    assert paths >= PROBES | PAGES | {"/metrics", "/fleet", "/v1/chat/completions"}
    for route in routes:
        if route.path in PROBES | PAGES:
            continue
        for method in route.methods:
            path = route.path.replace("{name:path}", "tiny")
            assert locked.request(method, path).status_code == 401
    for path in ("/docs", "/openapi.json", "/nowhere", "/static", "/static/../v1/models"):
        assert locked.get(path).status_code == 401


def test_probes_and_the_page_are_open(locked: Site) -> None:
    for path in (*PROBES, "/", "/static/page.js"):
        assert locked.get(path).status_code in (200, 503)
    assert locked.get("/static/nothing").status_code == 404


def test_keys_are_not_shown(locked: Site) -> None:
    assert KEY not in repr(locked.config)


@pytest.mark.row("F13.03")
def test_the_key_is_the_tenant_and_without_keys_the_user(locked: Site) -> None:
    def tenant(here: Site, key: str = "", **fields: object) -> str:
        headers = {"authorization": f"Bearer {key}"}
        assert here.post("/v1/chat/completions", chat(**fields), headers=headers).status_code == 200
        submit = [m for m in here.engine.scheduler.seen if isinstance(m, Submit)][-1]
        return submit.tenant

    assert [tenant(locked, key, user="u") for key in ("other", KEY)] == ["key-1", "key-2"]
    with site() as here:
        assert [tenant(here, user="u"), tenant(here)] == ["u", ""]


FILE = f"""
[[key]]
name = "alice"
key = "{KEY}"
tenant = "team"
requests_per_minute = 5

[[key]]
name = "bob"
sha256 = "{sha256(b"sk-bob-0123456789").hexdigest()}"
models = ["other"]
"""


def _with(path: Path, **settings: object) -> ApiKeys:
    return ApiKeys(Config(api_key_file=path, **settings))  # type: ignore[arg-type]


def _found(keys: ApiKeys, key: str) -> ApiKey:
    return keys.check("/v1/models", Headers({"authorization": f"Bearer {key}"}))


def test_keys_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(FILE)
    keys = _with(path, api_key="first-of-all", requests_per_minute=9, tokens_per_minute=70)
    alice, bob = _found(keys, KEY), _found(keys, "sk-bob-0123456789")
    assert alice == ApiKey("alice", "team", (), KeyLimits(5, 70))
    assert bob == ApiKey("bob", "bob", ("other",), KeyLimits(9, 70))
    assert bob.permits("other") and not bob.permits("tiny") and alice.permits("tiny")
    assert _found(keys, "first-of-all").name == "key-1"
    assert keys.check("/livez", Headers()) == ApiKey()


def test_a_revoked_key_is_refused_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A07: the file is looked at once a second, and a broken one changes nothing."""
    monkeypatch.setattr("baton_gateway.access.api_keys._LOOK_SECONDS", 0.0)
    path = tmp_path / "keys.toml"
    path.write_text(FILE)
    keys = _with(path)
    for text, allowed in (
        ("[[key", True),
        (FILE.replace(KEY, "sk-another-012345"), False),
        (FILE, True),
        ("", False),
    ):
        path.write_text(text + "\n" * len(text))
        if allowed:
            assert _found(keys, KEY).name == "alice"
        else:
            with pytest.raises(InvalidRequest) as caught:
                _found(keys, KEY)
            assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    path.unlink()
    with pytest.raises(InvalidRequest):
        _found(keys, KEY)


@pytest.mark.parametrize(
    "text",
    [
        "[[key",
        '[[key]]\nname = "a"',
        '[[key]]\nname = "a"\nkey = "short"',
        '[[key]]\nname = "a b"\nkey = "0123456789"',
        '[[key]]\nname = "a"\nkey = "0123456789"\nsha256 = "' + "0" * 64 + '"',
        '[[key]]\nname = "a"\nsha256 = "0"',
        '[[key]]\nname = "a"\nkey = "0123456789"\nrequests = 5',
        '[[key]]\nname = "a"\nkey = "0123456789"\nrequests_per_minute = -1',
        '[[key]]\nname = "a"\nkey = "0123456789"\n' * 2,
    ],
)
def test_a_file_that_cannot_be_used_stops_the_start(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(SettingsError):
        _with(path)
    path.unlink()
    with pytest.raises(SettingsError):
        _with(path)


def test_a_file_without_keys_lets_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text("")
    with site(api_key_file=path) as here:
        assert here.chat().status_code == 401


def test_a_key_is_found_by_its_name() -> None:
    keys = ApiKeys(Config(api_key="one,two"))
    assert keys.by_name("key-2").tenant == "key-2"
    assert keys.by_name("key-3") is keys.anyone
