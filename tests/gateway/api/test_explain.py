"""GET /v1/requests/{id}/explain over scripted servers."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from baton.protocol import Failed, PhaseTimes
from tests.fakes.gateway_app import (
    Site,
    completion,
    error_of,
    events_of,
    site,
)
from tests.fakes.whole_system import Whole

TIMES = PhaseTimes(
    0.001, 0.002, 0.003, preempted=0.001, preemptions=1, batch_neighbours=3.0, worker="worker-2"
)
SLACK = 0.02
"""Share of the wall time that may be unaccounted for."""


def explained(here: Site, name: str, **kwargs: Any) -> dict[str, Any]:
    response = here.get(f"/v1/requests/{name}/explain", **kwargs)
    assert response.status_code == 200, response.text
    told: dict[str, Any] = response.json()
    total = sum(part["ms"] for part in told["causes"]) + told["unattributed_ms"]
    assert total == pytest.approx(told["wall_ms"], rel=SLACK, abs=0.01)
    return told


def causes(told: dict[str, Any]) -> dict[str, float]:
    return {part["cause"]: part["ms"] for part in told["causes"]}


def test_by_the_id_of_the_request_and_by_that_of_its_answer(own_site: Site) -> None:
    own_site.engine.scheduler.times = TIMES
    own_site.engine.scheduler.pace = 0.005
    response = own_site.complete(max_tokens=5)
    told = explained(own_site, response.headers["x-request-id"])
    assert explained(own_site, response.json()["id"]) == told
    assert (told["status"], told["error"], told["path"]) == ("200", None, "/v1/completions")
    found = causes(told)
    assert (found["queue"], found["prefill"], found["decode"]) == (1, 2, 3)
    assert found["preempted"] == 1 and told["choices"][0]["preemptions"] == 1
    assert told["choices"][0]["shared_with"] == 3.0
    assert told["choices"][0]["worker"] == "worker-2"
    assert found["transport"] >= 5 * 5 - 7  # The scripted scheduler is slower than it says.
    assert told["unattributed_ms"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_chat_and_several_choices(own_site: Site, stream: bool) -> None:
    own_site.engine.scheduler.times = TIMES
    response = own_site.chat(n=3, stream=stream)
    told = explained(own_site, response.headers["x-request-id"])
    assert {run["choice"] for run in told["choices"]} == {0, 1, 2}
    assert told["choice"] in {0, 1, 2} and told["path"] == "/v1/chat/completions"


def test_a_stop_string_is_accounted_for_once_the_scheduler_has_heard_of_it(own_site: Site) -> None:
    own_site.engine.scheduler.times = TIMES
    response = own_site.complete(max_tokens=40, stop=["Baton"])
    assert response.json()["choices"][0]["finish_reason"] == "stop"
    told = explained(own_site, response.headers["x-request-id"])
    assert len(told["choices"]) == 1 and told["unattributed_ms"] == 0


def test_slow_encoding_is_named(own_site: Site) -> None:
    tokenizer = own_site.engine.tokenizer
    push, own_site.engine.scheduler.times = tokenizer.push, TIMES

    def later(message: Any) -> None:
        asyncio.get_running_loop().call_later(0.05, push, message)

    tokenizer.push = later
    response = own_site.complete(max_tokens=1)
    found = causes(explained(own_site, response.headers["x-request-id"]))
    assert found["encode"] >= 45 and found["detokenise"] >= 45
    assert found["receive"] < 45


@pytest.mark.parametrize("after", [0, 3])
def test_a_failure_is_explained_too(own_site: Site, after: int) -> None:
    scheduler = own_site.engine.scheduler
    scheduler.fail, scheduler.fail_after = Failed(0, "broken", "It broke.", 500), after
    scheduler.times = TIMES
    response = own_site.complete(max_tokens=9, stream=True)
    if after:
        assert events_of(response.text)[-1]["error"]["code"] == "broken"
    told = explained(own_site, response.headers["x-request-id"])
    assert (told["status"], told["error"]) == ("200" if after else "500", "broken")
    assert causes(told)["decode"] <= 3 and len(told["choices"]) == 1


def test_a_scheduler_that_is_lost_leaves_what_nobody_can_tell(own_site: Site) -> None:
    scheduler = own_site.engine.scheduler
    scheduler.pace, scheduler.times = 0.02, TIMES

    async def ask() -> httpx.Response:
        asking = asyncio.create_task(own_site.client.post("/v1/completions", json=completion()))
        while not any(run.done for run in scheduler.live.values()):
            await asyncio.sleep(0.001)
        scheduler.restart()
        return await asking

    response = own_site.run(ask)
    told = explained(own_site, response.headers["x-request-id"])
    assert told["status"] == "200" and told["unattributed_ms"] >= 20
    assert causes(told)["decode"] == 3


def test_a_client_that_reads_slowly(own_site: Site) -> None:
    own_site.engine.scheduler.times = TIMES

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        async def late(message: Any) -> None:
            await asyncio.sleep(0.02)
            await send(message)

        await own_site.app(scope, receive, late)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(slow)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/v1/completions", json=completion(max_tokens=9, stream=True))

    response = own_site.run(ask)
    told = explained(own_site, response.headers["x-request-id"])
    assert causes(told)["client"] > 0.5 * told["wall_ms"] > causes(told)["respond"]


def test_a_vector_is_accounted_for_by_the_real_scheduler(embedder: Whole) -> None:
    response = embedder.embed(["hi", "ho"])
    assert response.status_code == 200
    told = explained(embedder, response.headers["x-request-id"])
    assert (told["path"], told["unattributed_ms"]) == ("/v1/embeddings", 0)
    found = causes(told)
    assert found["prefill"] > 0 == found["decode"] and len(told["choices"]) == 2


def test_a_refusal_is_explained_too(own_site: Site) -> None:
    response = own_site.complete(temperature=-1)
    assert response.status_code == 400
    told = explained(own_site, response.headers["x-request-id"])
    assert (told["status"], told["choices"], set(causes(told))) == ("400", [], {"receive"})


def test_a_request_that_runs(own_site: Site) -> None:
    own_site.engine.scheduler.hold = True

    async def ask() -> dict[str, Any]:
        running = asyncio.create_task(
            own_site.client.post("/v1/completions", json=completion()),
        )
        while not own_site.engine.scheduler.live:
            await asyncio.sleep(0.001)
        (run,) = own_site.engine.scheduler.live.values()
        told = await own_site.client.get(f"/v1/requests/{run.submit.request}/explain")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        found: dict[str, Any] = told.json()
        return found

    told = own_site.run(ask)
    assert (told["state"], told["status"], told["causes"][-1]["cause"]) == ("running", "", "engine")


@pytest.mark.parametrize("name", ["req_" + "0" * 32, "nonsense", "chatcmpl-", "%00"])
def test_an_unknown_id(shared_site: Site, name: str) -> None:
    response = shared_site.get(f"/v1/requests/{name}/explain")
    error = error_of(response)
    assert (response.status_code, error["code"]) == (404, "request_not_found")
    assert error["type"] == "invalid_request_error" and error["param"] is None


def test_only_its_owner_reads_it() -> None:
    with site(api_key="mine,yours") as here:
        mine = {"authorization": "Bearer mine"}
        response = here.post("/v1/completions", completion(), headers=mine)
        name = response.headers["x-request-id"]
        assert explained(here, name, headers=mine)["status"] == "200"
        for headers, status in (({"authorization": "Bearer yours"}, 404), ({}, 401)):
            refused = here.get(f"/v1/requests/{name}/explain", headers=headers)
            assert refused.status_code == status
            error_of(refused)


def test_old_requests_make_room() -> None:
    with site(explained_requests=2) as here:
        names = [here.complete().headers["x-request-id"] for _ in range(3)]
        assert here.get(f"/v1/requests/{names[0]}/explain").status_code == 404
        assert [explained(here, name)["id"] for name in names[1:]] == names[1:]
        assert here.engine.timelines.num_outstanding == 2  # None are reported.
