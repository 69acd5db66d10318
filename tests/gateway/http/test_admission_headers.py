"""Queue estimates in response headers, and the cache salt in submissions."""

from __future__ import annotations

from typing import Any

import pytest

from baton.protocol import QueueEstimate, Submit
from tests.fakes.gateway_app import Site, chat, completion


def submits(site: Site) -> list[Submit]:
    return [m for m in site.engine.scheduler.seen if isinstance(m, Submit)]


def ask(site: Site, path: str, report: str | None = None, **fields: Any) -> Any:
    headers = {} if report is None else {"x-cache-report": report}
    body = chat(**fields) if "chat" in path else completion(**fields)
    return site.post(path, body, headers=headers)


PATHS = pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])


@PATHS
@pytest.mark.parametrize("stream", [False, True])
def test_place_and_estimate_are_headers(own_site: Site, path: str, stream: bool) -> None:
    own_site.engine.scheduler.note = QueueEstimate(7, 1250)
    headers = ask(own_site, path, stream=stream, n=2).headers
    assert (headers["x-queue-position"], headers["x-estimated-ttft-ms"]) == ("7", "1250")
    assert "x-cache-report" not in headers and not any(s.explain for s in submits(own_site))


def test_what_was_not_measured_is_not_estimated(own_site: Site) -> None:
    own_site.engine.scheduler.note = QueueEstimate(0, -1)
    headers = ask(own_site, "/v1/completions").headers
    assert headers["x-queue-position"] == "0" and "x-estimated-ttft-ms" not in headers


@PATHS
def test_a_cache_report_comes_when_it_is_asked_for(own_site: Site, path: str) -> None:
    own_site.engine.scheduler.note = QueueEstimate(0, 3, "differs", 96)
    headers = ask(own_site, path, "1").headers
    assert headers["x-cache-report"] == "differs; token=96"
    assert all(s.explain for s in submits(own_site))


def test_another_value_of_the_header_is_refused(own_site: Site) -> None:
    response = ask(own_site, "/v1/chat/completions", "yes")
    assert response.status_code == 400 and "X-Cache-Report" in response.json()["error"]["message"]


@PATHS
def test_a_salt_reaches_the_scheduler(own_site: Site, path: str) -> None:
    ask(own_site, path, cache_salt="sél")
    ask(own_site, path)
    assert [s.salt for s in submits(own_site)] == ["sél".encode(), b""]


@pytest.mark.parametrize("salt", ["", "x" * 1025])
def test_a_salt_of_no_or_too_many_characters_is_refused(own_site: Site, salt: str) -> None:
    response = ask(own_site, "/v1/completions", cache_salt=salt)
    assert response.status_code == 400 and response.json()["error"]["param"] == "cache_salt"
