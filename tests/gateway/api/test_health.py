"""Health probes: liveness differs from readiness, which requires progress."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.gateway_app import Site, site
from tests.fakes.gateway_engine import worker

READY = ("/health", "/health/ready", "/readyz", "/ping")


def _settle(here: Site, seconds: float = 0.3) -> None:
    here.run(lambda: asyncio.sleep(seconds))


@pytest.mark.row("F19.01")
def test_healthy(shared_site: Site) -> None:
    _settle(shared_site)
    for path in (*READY, "/health/live", "/livez"):
        assert shared_site.get(path).status_code == 200
        probe = shared_site.request("HEAD", path)
        assert probe.status_code == 200 and not probe.content, "load balancers may ask so"
    assert shared_site.get("/health").json() == {"status": "ok", "reasons": []}
    assert shared_site.get("/load").json() == {"server_load": 0}


@pytest.mark.row("F19.01")
def test_worker_without_progress() -> None:
    """The worker says that it is ready and beats on, but its steps stand still."""
    with site(worker_hang_seconds=0.3) as here:
        _settle(here)
        assert here.get("/health").status_code == 200
        here.engine.scheduler.workers = (worker(running=1, steps=5),)
        _settle(here, 0.7)
        response = here.get("/health")
        assert response.status_code == 503 and response.headers["retry-after"] == "1"
        assert response.json()["reasons"] == ["worker worker-1 is hung"]
        assert here.get("/health/live").status_code == 200
        here.engine.scheduler.workers = (worker(running=0, steps=6),)
        _settle(here)
        assert here.get("/health").status_code == 200


@pytest.mark.row("F19.01")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"workers": (worker("hung"),)}, "worker worker-1 is hung"),
        ({"workers": ()}, "no worker has joined"),
        ({"workers": (worker("draining"),)}, "no worker takes new work"),
    ],
)
def test_reports_of_the_scheduler(own_site: Site, change: dict[str, Any], reason: str) -> None:
    for name, value in change.items():
        setattr(own_site.engine.scheduler, name, value)
    _settle(own_site)
    for path in READY:
        response = own_site.get(path)
        assert (response.status_code, response.json()["reasons"]) == (503, [reason])


def test_scheduler_that_beats_but_does_not_report(
    own_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton_gateway.clients.fleet_view.SILENT_SECONDS", 0.2)
    own_site.engine.scheduler.report = False
    _settle(own_site, 0.5)
    assert own_site.get("/health").json()["reasons"] == ["the scheduler is silent"]


def test_nobody_answers(own_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.net.handshake.QUIET_SECONDS", 0.2)
    monkeypatch.setattr("baton.net.handshake.LOST_SECONDS", 0.2)
    own_site.engine.scheduler.silent = own_site.engine.tokenizer.silent = True
    _settle(own_site, 0.5)
    reasons = own_site.get("/health").json()["reasons"]
    assert reasons == ["the scheduler does not answer", "no tokenizer answers"]


def test_draining(own_site: Site) -> None:
    _settle(own_site)
    own_site.engine.status.draining = True
    assert own_site.get("/health/ready").json()["reasons"] == ["this gateway is draining"]


def test_a_file_that_was_begun_anew_is_a_warning(own_site: Site) -> None:
    own_site.app.state.streams._journal._file.problem = "it was corrupt"
    own_site.app.state.objects._file.problem = "so was it"
    response = own_site.get("/health")
    assert (response.status_code, response.json()) == (
        200, {"status": "ok", "reasons": [], "warnings": ["it was corrupt", "so was it"]},
    )  # fmt: skip
