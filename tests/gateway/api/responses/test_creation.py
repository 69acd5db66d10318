"""Responses under an Idempotency-Key; how others are created is in the tests of the routes."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

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
        assert "'store'" in post(one, background=False, store=False).json()["error"]["message"]
        assert len(submits(one) + submits(two)) == 1


def test_its_clients_wait_for_it_where_it_is_not_in_the_background(tmp_path: Path) -> None:
    paths = {"journal_path": tmp_path / "journal", "store_path": tmp_path / "store"}
    with site(**paths) as one, site(**paths) as two:
        one.engine.scheduler.hold, one.engine.scheduler.pace = True, 0.05

        def post(here: Site, key: str, **fields: Any) -> httpx.Response:
            body = {"model": MODEL, "input": "hi"} | fields
            header = {"idempotency-key": key}
            url = f"{here.url}/v1/responses"
            return httpx.post(url, json=body, headers=header, timeout=60)

        with ThreadPoolExecutor() as pool:
            running = pool.submit(post, one, "whole")
            until(lambda: len(submits(one)) == 1, "it runs")
            until(lambda: has_job(paths["store_path"]), "it is stored")
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(
                    f"{one.url}/v1/responses",
                    json={"model": MODEL, "input": "hi"},
                    headers={"idempotency-key": "whole"},
                    timeout=httpx.Timeout(60, read=0.05),
                )
            waiting = pool.submit(post, one, "whole")
            one.engine.scheduler.hold = False  # from the next request on
            streams = [post(here, "stream", stream=True) for here in (one, two)]
            first, beside = running.result(), waiting.result()
        after = post(two, "whole")
        assert first.json() == beside.json() == after.json()
        assert (first.json()["status"], first.json()["background"]) == ("completed", False)
        assert [r.headers.get("idempotency-replayed") for r in (first, beside, after)] == [
            None,
            "true",
            "true",
        ]
        assert streams[0].text == streams[1].text
        assert response_of(named_events(streams[0].text))["status"] == "completed"
        assert [len(submits(here)) for here in (one, two)] == [2, 0]


def has_job(store: Path) -> bool:
    """Whether a response runs in the background: its journal and its store have it."""
    with closing(sqlite3.connect(store)) as db:
        return bool(db.execute("SELECT count(*) FROM objects WHERE kind = 'job'").fetchone()[0])


def submits(here: Site) -> list[Submit]:
    return [m for m in here.engine.scheduler.seen if isinstance(m, Submit)]
