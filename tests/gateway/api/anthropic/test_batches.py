"""Message batches as Anthropic's client uses them, and who may see them."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest

from tests.fakes.gateway_app import Site, chat, site
from tests.fakes.gateway_engine import MODEL
from tests.fakes.listening import listening
from tests.support.gateway.batch_records import line

REPLY = "Hello from Baton."


def client(at: str, key: str = "none") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(api_key=key, base_url=f"http://{at}", max_retries=0)


def asked(name: str, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "hi"}]
    params = {"model": MODEL, "max_tokens": 99, "messages": messages} | fields
    return {"custom_id": name, "params": params}


async def ended(own: Any, name: str) -> Any:
    async with asyncio.timeout(60):
        while (batch := await own.retrieve(name)).processing_status != "ended":
            await asyncio.sleep(0.05)
    return batch


async def results(own: Any, name: str) -> dict[str, Any]:
    return {one.custom_id: one.result async for one in await own.results(name)}


def test_a_batch_with_anthropics_client(own_site: Site) -> None:
    async def main() -> None:
        async with listening(own_site.app) as at, client(at) as opened:
            own = opened.messages.batches
            wrong = [asked("wrong", max_tokens=-1), asked("other", model="no")]
            made = await own.create(requests=[asked("a"), asked("b"), *wrong])
            assert made.id.startswith("msgbatch_") and made.processing_status == "in_progress"
            assert made.request_counts.processing == 4 and made.results_url is None
            batch = await ended(own, made.id)
            counts = batch.request_counts
            assert (counts.succeeded, counts.errored, counts.processing) == (2, 2, 0)
            assert batch.results_url and batch.ended_at and batch.archived_at is None
            found = await results(own, made.id)
            kinds = {"a": "succeeded", "b": "succeeded", "wrong": "errored", "other": "errored"}
            assert {name: one.type for name, one in found.items()} == kinds
            assert found["a"].message.content[0].text == REPLY
            assert found["wrong"].error.error.type == "invalid_request_error"
            assert found["other"].error.error.type == "not_found_error"
            await own.delete(made.id)
            with pytest.raises(anthropic.NotFoundError):
                await own.retrieve(made.id)

    own_site.run(main)
    assert not own_site.get("/v1/files").json()["data"]


def test_a_cancelled_batch_tells_what_did_not_run() -> None:
    async def main() -> None:
        async with listening(here.app) as at, client(at) as opened:
            own = opened.messages.batches
            made = await own.create(requests=[asked(f"r{n}") for n in range(5)])
            async with asyncio.timeout(60):
                while not here.engine.scheduler.submits:
                    await asyncio.sleep(0.01)
            with pytest.raises(anthropic.AnthropicError, match="results_url"):
                await own.results(made.id)
            with pytest.raises(anthropic.BadRequestError, match="Cancel it first"):
                await own.delete(made.id)
            assert (await own.cancel(made.id)).processing_status == "canceling"
            here.engine.scheduler.hold = False
            await here.client.post("/v1/chat/completions", json=chat())
            counts = (await ended(own, made.id)).request_counts
            assert counts.succeeded + counts.canceled == 5 and counts.canceled >= 3
            kinds = [one.type for one in (await results(own, made.id)).values()]
            assert kinds.count("canceled") == counts.canceled

    with site(max_batch_requests=1) as here:
        here.engine.scheduler.hold = True
        here.run(main)


def test_results_are_there_at_the_end(own_site: Site) -> None:
    own_site.engine.scheduler.hold = True
    name = own_site.post("/v1/messages/batches", {"requests": [asked("a")]}).json()["id"]
    response = own_site.get(f"/v1/messages/batches/{name}/results")
    assert response.status_code == 400 and "has not ended" in response.json()["error"]["message"]


def test_batches_are_listed_in_both_directions(own_site: Site) -> None:
    async def main() -> None:
        async with listening(own_site.app) as at, client(at) as opened:
            own = opened.messages.batches
            made = [(await own.create(requests=[asked("a")])).id for _ in range(3)]
            first = await own.list(limit=2)
            assert [one.id for one in first.data] == made[:0:-1] and first.has_more
            later = await own.list(limit=2, after_id=made[1])
            assert [one.id for one in later.data] == made[:1] and not later.has_more
            before = await own.list(limit=1, before_id=made[0])
            assert [one.id for one in before.data] == [made[1]] and before.has_more
            with pytest.raises(anthropic.BadRequestError, match="after_id"):
                await own.list(after_id="strange")

    own_site.run(main)


def test_batches_belong_to_their_key() -> None:
    async def main() -> None:
        async with (
            listening(here.app) as at,
            client(at, "sk-alice-123") as alice,
            client(at, "sk-bob-45678") as bob,
        ):
            made = await alice.messages.batches.create(requests=[asked("a")])
            theirs = bob.messages.batches
            assert not (await theirs.list()).data
            calls: Any = (theirs.retrieve, theirs.cancel, theirs.delete, theirs.results)
            for call in calls:
                with pytest.raises(anthropic.NotFoundError):
                    await call(made.id)

    with site(api_key="sk-alice-123,sk-bob-45678") as here:
        here.run(main)


def test_each_api_shows_its_own_batches(own_site: Site) -> None:
    ours = own_site.post("/v1/messages/batches", {"requests": [asked("a")]}).json()["id"]
    upload = {"file": ("in.jsonl", line("a", model=MODEL, messages=[]))}
    file = own_site.post("/v1/files", files=upload, data={"purpose": "batch"}).json()["id"]
    body = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    theirs = own_site.post("/v1/batches", body).json()["id"]
    for path, shown, hidden in (("messages/batches", ours, theirs), ("batches", theirs, ours)):
        assert [one["id"] for one in own_site.get(f"/v1/{path}").json()["data"]] == [shown]
        assert own_site.get(f"/v1/{path}/{hidden}").status_code == 404
