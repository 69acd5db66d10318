"""Responses under an Idempotency-Key; how others are created is in the tests of the routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from baton.protocol import Submit
from tests.fakes.gateway_engine import MODEL
from tests.fakes.gateway_socket import Site, site
from tests.support.gateway.message_events import named_events
from tests.support.gateway.response_events import response_of
from tests.support.served_system import until


def test_it_is_begun_once_under_a_key(tmp_path: Path) -> None:
    paths = {"journal_path": tmp_path / "journal", "store_path": tmp_path / "store"}
    with site(**paths) as one, site(**paths) as two:
        body = {"model": MODEL, "input": "hi", "background": True}
        key = {"idempotency-key": "k"}

        def post(here: Site, **fields: Any) -> httpx.Response:
            return httpx.post(f"{here.url}/v1/responses", json=body | fields, headers=key)

        first, again = post(one), post(two)
        assert first.json()["id"] == again.json()["id"]
        assert "idempotency-replayed" not in first.headers
        assert again.headers["idempotency-replayed"] == "true"
        until(lambda: post(two).json()["status"] == "completed", "it has ended")
        assert post(one).json()["output"][0]["content"][0]["text"] == "Hello from Baton."
        whole = httpx.get(f"{two.url}/v1/responses/{first.json()['id']}?stream=true").text
        assert response_of(named_events(whole)) == post(one).json()
        reused = post(one, input="else")
        assert (reused.status_code, reused.json()["error"]["code"]) == (
            409,
            "idempotency_key_reused",
        )
        assert "'background'" in post(one, background=False).json()["error"]["message"]
        submits = [m for here in (one, two) for m in here.engine.scheduler.seen]
        assert len([m for m in submits if isinstance(m, Submit)]) == 1
