"""POST /pause and /resume, GET /is_paused"""

from __future__ import annotations

import pytest

from baton.protocol import Pause, Resume
from tests.fakes.gateway_app import Site, error_of


def test_a_model_is_paused_and_resumed(own_site: Site) -> None:
    assert own_site.get("/is_paused").json() == {"is_paused": False}
    assert own_site.post("/pause?mode=wait&clear_cache=true").json() == {"status": "paused"}
    assert own_site.get("/is_paused").json() == {"is_paused": True}
    assert own_site.post("/resume").json() == {"status": "resumed"}
    assert own_site.get("/is_paused").json() == {"is_paused": False}
    own_site.post("/pause")
    wanted = [Pause("wait", clear_cache=True), Resume(), Pause("keep")]
    assert own_site.engine.scheduler.actions == wanted


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ("mode=now", 400, "mode"),
        ("clear_cache=perhaps", 400, "clear_cache"),
        ("model=nobody", 404, "model"),
    ],
)
def test_what_has_no_meaning_is_refused(
    own_site: Site, query: str, status: int, param: str
) -> None:
    refused = own_site.post(f"/pause?{query}")
    assert (refused.status_code, error_of(refused)["param"]) == (status, param)
    assert own_site.engine.scheduler.actions == []
