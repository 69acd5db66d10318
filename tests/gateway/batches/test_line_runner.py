"""A line is a request like any other: the same checks, the same answers, on its own account."""

from __future__ import annotations

import json
from typing import Any

from baton.protocol import BACKGROUND, Submit
from baton_gateway.access.api_keys import ApiKey
from baton_gateway.batches.line_runner import LineOutcome, LineRunner, expired_line
from baton_gateway.durable.batch_store import Line
from tests.fakes.gateway_app import Site, chat, site
from tests.fakes.gateway_engine import MODEL

CHAT = "/v1/chat/completions"
KEY = ApiKey("alice", "research")


def run(
    here: Site, body: Any, key: ApiKey | None = KEY, path: str = CHAT
) -> tuple[LineOutcome | None, float]:
    line = Line(0, "c0", json.dumps(body).encode())
    runner = LineRunner(here.app)
    found: tuple[LineOutcome | None, float] = here.run(
        lambda: runner.run(line, path, key, BACKGROUND)
    )
    return found


def test_a_line_is_answered_as_a_request() -> None:
    with site(api_key="sk-12345678") as here:
        outcome, _ = run(here, chat())
        assert outcome is not None and outcome.ok
        result = json.loads(outcome.result)
        assert (result["custom_id"], result["error"]) == ("c0", None)
        response = result["response"]
        assert response["status_code"] == 200 and response["request_id"].startswith("req_")
        assert response["body"]["choices"][0]["message"]["content"]
        for path, body in (
            ("/v1/completions", {"model": MODEL, "prompt": "hi"}),
            ("/v1/responses", {"model": MODEL, "input": "hi"}),
        ):
            outcome, _ = run(here, body, path=path)
            assert outcome is not None and outcome.ok, (path, outcome)
        said = json.loads(outcome.result)["response"]["body"]
        assert (said["object"], said["status"]) == ("response", "completed")
        submits = [m for m in here.engine.scheduler.seen if isinstance(m, Submit)]
        assert [(m.priority, m.tenant) for m in submits] == [(BACKGROUND, "research")] * 3


def test_what_fails_is_an_answer_too(shared_site: Site) -> None:
    outcome, _ = run(shared_site, chat(n=0))
    assert outcome is not None and not outcome.ok
    response = json.loads(outcome.result)["response"]
    assert response["status_code"] == 400 and response["body"]["error"]["param"] == "n"


def test_an_overload_is_no_answer() -> None:
    with site(max_concurrent_requests=1) as here:
        here.engine.status.num_requests = 1
        outcome, wait = run(here, chat())
        assert outcome is None and wait >= 1


def test_a_line_without_a_key_or_in_time() -> None:
    with site() as here:
        outcome, _ = run(here, chat(), key=None)
        assert outcome is not None
        assert json.loads(outcome.result)["error"]["code"] == "invalid_api_key"
    late = json.loads(expired_line(Line(0, "c0", b"{}")))
    assert late["error"]["code"] == "batch_expired" and late["response"] is None
