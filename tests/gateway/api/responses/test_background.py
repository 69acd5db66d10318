"""Responses in the background: polled, followed, cancelled, and continued by another gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from baton.protocol import Failed, Submit
from baton_gateway.api.responses import background
from tests.fakes.gateway_engine import MODEL
from tests.fakes.gateway_socket import Site, site
from tests.support.gateway.message_events import named_events
from tests.support.gateway.response_events import response_of
from tests.support.served_system import until

REPLY = "Grüße, 🫠 Baton. " * 12


@contextmanager
def gateway(folder: Path, pace: float = 0.002, **settings: Any) -> Iterator[Site]:
    """One of several gateways with a common journal and store."""
    paths = {"journal_path": folder / "journal", "store_path": folder / "store"}
    with site(**paths, **settings) as here:
        here.engine.scheduler.reply, here.engine.scheduler.pace = REPLY, pace
        yield here


def client_of(here: Site) -> Any:
    return OpenAI(base_url=f"{here.url}/v1", api_key="none", max_retries=0).responses


def begin(here: Site, **fields: Any) -> Any:
    said = client_of(here).create(model=MODEL, input="hi", background=True, **fields)
    assert said.status == "in_progress" and said.background and said.output == []
    return said


def ended(here: Site, name: str) -> Any:
    client = client_of(here)
    until(lambda: client.retrieve(name).status != "in_progress", "the response has ended")
    return client.retrieve(name)


def events(here: Site, name: str, after: int = -1) -> list[dict[str, Any]]:
    query = {"stream": "true"} | ({"starting_after": str(after)} if after >= 0 else {})
    answer = httpx.get(f"{here.url}/v1/responses/{name}", params=query, timeout=30)
    assert answer.status_code == 200, answer.text
    return named_events(answer.text) if answer.text else []


@pytest.mark.row("F18.05")
def test_it_is_polled_and_its_events_can_be_had_from_any_number(tmp_path: Path) -> None:
    with gateway(tmp_path) as here:
        said = begin(here, metadata={"a": "b"})
        found = ended(here, said.id)
        assert found.status == "completed" and found.output_text == REPLY
        whole = events(here, said.id)
        assert response_of(whole) == found.to_dict()
        for after in (0, 7, len(whole) - 2):
            assert events(here, said.id, after) == whole[after + 1 :]
        assert events(here, said.id, len(whole) + 5) == []
        submits = [m for m in here.engine.scheduler.seen if isinstance(m, Submit)]
        assert len(submits) == 1, "nothing was run twice"
        again = client_of(here).create(model=MODEL, input="x", previous_response_id=said.id)
        assert again.status == "completed"


def test_it_is_streamed_and_goes_on_when_its_client_leaves(tmp_path: Path) -> None:
    with gateway(tmp_path, unread_stream_seconds=0.1) as here:
        stream = client_of(here).create(model=MODEL, input="hi", background=True, stream=True)
        seen = [event.to_dict() for event, _ in zip(stream, range(9), strict=False)]
        stream.close()
        name = seen[0]["response"]["id"]
        rest = events(here, name, seen[-1]["sequence_number"])
        response = response_of([*seen, *rest])
        assert response["output"][0]["content"][0]["text"] == REPLY
        assert client_of(here).retrieve(name).to_dict() == response


@pytest.mark.row("F18.06")
def test_it_is_cancelled_where_it_is(tmp_path: Path) -> None:
    with gateway(tmp_path, pace=0.02) as one, gateway(tmp_path) as two:
        for here in (one, two):
            said = begin(one)
            until(lambda: len(one.engine.scheduler.live) > 0, "it runs")
            cancelled = client_of(here).cancel(said.id)
            assert cancelled.status == "cancelled" and cancelled.error is None
            until(lambda: not one.engine.scheduler.live, "it has stopped")
            assert client_of(two).cancel(said.id) == cancelled
            *_, last = events(here, said.id)
            assert last["response"]["status"] == "cancelled"
            assert client_of(one).retrieve(said.id) == cancelled
        said = begin(one)
        client_of(one).delete(said.id)
        until(lambda: not one.engine.scheduler.live, "it has stopped")
        with pytest.raises(NotFoundError):
            client_of(one).retrieve(said.id)


def test_who_follows_it_is_told_that_it_was_cancelled(tmp_path: Path) -> None:
    with gateway(tmp_path, pace=0.02) as here:
        said = begin(here)
        with client_of(here).retrieve(said.id, stream=True) as stream:
            next(stream)
            client_of(here).cancel(said.id)
            *_, last = stream
        assert (last.type, last.response.status) == ("response.failed", "cancelled")


def test_it_is_followed_at_another_gateway(tmp_path: Path) -> None:
    """Which continues it from its log: the first one is fenced off."""
    with gateway(tmp_path, pace=0.01) as one, gateway(tmp_path) as two:
        made = httpx.post(f"{two.url}/v1/conversations", json={}).json()["id"]
        said = begin(one, conversation=made)
        until(lambda: len(one.engine.scheduler.live) > 0, "it runs")
        response = response_of(events(two, said.id))
        assert response["output"][0]["content"][0]["text"] == REPLY
        assert ended(one, said.id).to_dict() == response
        until(lambda: not one.engine.scheduler.live, "the first one has stopped")
        assert any(m.log for m in two.engine.scheduler.seen if isinstance(m, Submit))
        listed = httpx.get(f"{one.url}/v1/conversations/{made}/items").json()["data"]
        assert [item["role"] for item in listed] == ["assistant", "user"], "once"


@pytest.mark.parametrize("killed", [False, True])
def test_it_goes_on_at_the_next_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Without anybody asking for it; one that was killed leaves its job until that is due."""
    monkeypatch.setattr(background, "_LEASE_SECONDS", 1.0 if killed else 600.0)
    monkeypatch.setattr(background, "_SWEEP_SECONDS", 0.1)
    with gateway(tmp_path, pace=0.05) as one:
        said = begin(one)
        until(lambda: len(one.engine.scheduler.live) > 0, "it runs")
        if killed:
            monkeypatch.setattr(background.JobStore, "release", _nothing)
    monkeypatch.undo()
    monkeypatch.setattr(background, "_SWEEP_SECONDS", 0.1)
    with gateway(tmp_path) as two:
        found = ended(two, said.id)
        assert found.status == "completed" and found.output_text == REPLY
        response_of(events(two, said.id))


async def _nothing(*given: Any) -> None:
    """A gateway that was killed releases nothing."""


def test_one_that_fails_ends_and_one_that_waits_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_RETRY_SECONDS", 0.2)
    monkeypatch.setattr(background, "_SWEEP_SECONDS", 0.1)
    with gateway(tmp_path) as here:
        scheduler = here.engine.scheduler
        scheduler.fail, scheduler.fail_after = Failed(0, "broken", "It broke.", 500), 3
        said = begin(here)
        found = ended(here, said.id)
        assert found.status == "failed" and found.error.message == "It broke."
        failed = response_of(events(here, said.id))
        assert failed["output"][0]["status"] == "incomplete"
        scheduler.fail = Failed(0, "server_is_overloaded", "The queue is full.", 503)
        said = begin(here)
        until(lambda: client_of(here).retrieve(said.id).status == "in_progress", "it waits")
        scheduler.fail = None
        assert ended(here, said.id).output_text == REPLY


def test_one_whose_time_is_over_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_SWEEP_SECONDS", 0.1)
    with gateway(tmp_path, pace=0.05) as one:
        said = begin(one)
    (tmp_path / "journal").unlink()
    with gateway(tmp_path) as two:
        found = ended(two, said.id)
        assert found.status == "failed" and "not continued in time" in found.error.message
        with pytest.raises(BadRequestError, match="events of this response are gone"):
            client_of(two).retrieve(said.id, stream=True)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with gateway(tmp_path) as here:
        client = client_of(here)
        with pytest.raises(BadRequestError, match="'store'"):
            client.create(model=MODEL, input="hi", background=True, store=False)
        with pytest.raises(BadRequestError, match="context length"):
            client.create(model=MODEL, input="hi", background=True, max_output_tokens=10**6)
        said = client.create(model=MODEL, input="hi")
        for call in (client.cancel, lambda name: client.retrieve(name, stream=True)):
            with pytest.raises(BadRequestError, match="created with 'background': true"):
                call(said.id)
        for call in (client.cancel, lambda name: client.retrieve(name, stream=True)):
            with pytest.raises(NotFoundError):
                call("resp_0")
        assert json.loads(httpx.get(f"{here.url}/health").text)["status"] == "ok"
