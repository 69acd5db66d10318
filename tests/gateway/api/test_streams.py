"""GET /v1/streams/{id}: resumption without gaps or repeats, on any gateway, for its owner only."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.gateway_app import chat, completion, error_of
from tests.fakes.gateway_socket import Site, site
from tests.support.served_system import until

REPLY = "Grüße, 🫠 Baton. " * 12
DURABLE = {"x-stream-durable": "1"}
PATHS = {"/v1/chat/completions": chat, "/v1/completions": completion}

Frames = list[tuple[str, str]]
"""(id, data) of each event."""


@contextmanager
def gateway(folder: Path, pace: float = 0.002, **settings: Any) -> Iterator[Site]:
    """One of several gateways with a common journal."""
    with site(journal_path=folder / "journal", **settings) as here:
        here.engine.scheduler.reply, here.engine.scheduler.pace = REPLY, pace
        yield here


def frames(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Events as they come; one without an id has an empty one."""
    name = ""
    for line in lines:
        if line.startswith("id: "):
            name = line[4:]
        elif line.startswith("data: "):
            yield name, line[6:]
            name = ""


def ask(here: Site, path: str, count: int = 10**6, headers: Any = DURABLE, **fields: Any) -> Frames:
    """Read so many events of a new stream, then leave."""
    body = PATHS[path](stream=True, max_tokens=400, seed=5, **fields)
    with httpx.stream("POST", f"{here.url}{path}", json=body, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        return [frame for frame, _ in zip(frames(answer.iter_lines()), range(count), strict=False)]


def resume(here: Site, last: str, count: int = 10**6, name: str = "", **headers: str) -> Frames:
    """Read on after an event."""
    name = name or last.rpartition(":")[0]
    given = ({"last-event-id": last} if last else {}) | headers
    with httpx.stream("GET", f"{here.url}/v1/streams/{name}", headers=given) as answer:
        assert answer.status_code == 200, answer.read()
        return [frame for frame, _ in zip(frames(answer.iter_lines()), range(count), strict=False)]


def check(events: Frames, undisturbed: Frames) -> None:
    """Numbered without a gap or a repeat, and nothing but the id and the time differ."""
    name = events[0][0].rpartition(":")[0]
    assert [number for number, _ in events] == [f"{name}:{i}" for i in range(len(events))]
    assert text(events) == text(undisturbed)
    assert events[-1][1] == "[DONE]"


def text(events: Frames) -> dict[int, list[Any]]:
    """Per choice its text, its tokens and why it ended; usage under -1."""
    found: dict[int, list[Any]] = {}
    for _, data in events:
        if data == "[DONE]":
            continue
        body = httpx.Response(200, text=data).json()
        for choice in body["choices"]:
            one = found.setdefault(choice["index"], ["", [], None])
            one[0] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            one[1] += choice.get("token_ids", [])
            one[2] = choice["finish_reason"]
        if body.get("usage"):
            found[-1] = [body["usage"]]
    return found


FIELDS = [
    {"n": 3, "stream_options": {"include_usage": True}, "return_token_ids": True},
    {"stop": ["zz", "on.?"], "logprobs": 1},
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fields", FIELDS, ids=["choices", "stops"])
def test_on_the_same_gateway(tmp_path: Path, path: str, fields: dict[str, Any]) -> None:
    fields = fields | ({"logprobs": True} if "logprobs" in fields and "chat" in path else {})
    with gateway(tmp_path) as here:
        whole = ask(here, path, **fields)
        seen = ask(here, path, 7, **fields)
        seen += resume(here, seen[-1][0], 9)
        seen += resume(here, seen[-1][0])
        check(seen, whole)
        check(resume(here, "", name=whole[0][0].rpartition(":")[0]), whole)
        submits = len([m for m in here.engine.scheduler.seen if type(m).__name__ == "Submit"])
        assert submits == 2 * fields.get("n", 1), "nothing was run twice"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fields", FIELDS, ids=["choices", "stops"])
def test_on_another_gateway(tmp_path: Path, path: str, fields: dict[str, Any]) -> None:
    """Whoever reads it runs it: the one that ran it before is told so, and stops."""
    fields = fields | ({"logprobs": True} if "logprobs" in fields and "chat" in path else {})
    with gateway(tmp_path) as one, gateway(tmp_path) as two:
        whole = ask(one, path, **fields)
        seen = ask(one, path, 20, **fields)
        seen += resume(two, seen[-1][0], 30)
        until(lambda: not one.engine.scheduler.live, "the first one has stopped")
        seen += resume(one, seen[-1][0])
        check(seen, whole)
        assert any(m.log for m in two.engine.scheduler.seen if type(m).__name__ == "Submit")
        until(lambda: not two.engine.scheduler.live, "the second one has stopped")


def test_one_that_is_cut_off_sends_its_clients_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that can be resumed loses its connection; what has no token yet, and what is new,
    gets a 503 that closes the connection. A stream that cannot be resumed waits."""
    monkeypatch.setattr("baton_gateway.clients.connection.LOST_SECONDS", 0.3)
    path = "/v1/completions"
    with gateway(tmp_path, shared_port=True, pace=0.02) as one, gateway(tmp_path) as two:
        whole = ask(two, path)
        with ThreadPoolExecutor() as pool:
            seen: Frames = []
            durable = pool.submit(read_until_it_breaks, one, path, seen)
            other = pool.submit(ask, one, path, headers={})
            until(lambda: len(seen) > 5, "both run")
            one.engine.scheduler.silent = True
            durable.result(timeout=60)
            assert not any("error" in data for _, data in seen)
            assert_refused(httpx.post(f"{one.url}{path}", json=completion()))
            last = {"last-event-id": seen[-1][0]}
            name = seen[-1][0].rpartition(":")[0]
            assert_refused(httpx.get(f"{one.url}/v1/streams/{name}", headers=last))
            assert httpx.get(f"{one.url}/health/ready").status_code == 503
            check(seen + resume(two, seen[-1][0]), whole)
            one.engine.scheduler.silent = False
            assert [data for _, data in other.result(timeout=60)][-1] == "[DONE]"
            assert httpx.get(f"{one.url}/health/ready").status_code == 200


def read_until_it_breaks(here: Site, path: str, seen: Frames) -> None:
    """Read a durable stream whose connection will be closed without an end."""
    body = PATHS[path](stream=True, max_tokens=400, seed=5)
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream("POST", f"{here.url}{path}", json=body, headers=DURABLE) as answer,
    ):
        seen.extend(frames(answer.iter_lines()))


def assert_refused(answer: httpx.Response) -> None:
    """Another gateway should be asked, over another connection."""
    assert (answer.status_code, answer.headers["connection"]) == (503, "close")
    assert error_of(answer)["code"] == "cut_off" and answer.headers["retry-after"] == "1"


def test_a_stream_pauses_when_nobody_reads_it_and_goes_on_later(tmp_path: Path) -> None:
    with gateway(tmp_path, pace=0.01, unread_stream_seconds=0.1) as here:
        whole = ask(here, "/v1/completions")
        seen = ask(here, "/v1/completions", 5)
        until(lambda: not here.engine.scheduler.live, "its work is aborted")
        assert here.engine.scheduler.aborted
        seen += resume(here, seen[-1][0])
        check(seen, whole)


def test_a_stream_goes_on_while_nobody_reads_it(tmp_path: Path) -> None:
    with gateway(tmp_path, pace=0.001) as here:
        whole = ask(here, "/v1/completions")
        seen = ask(here, "/v1/completions", 5)
        until(lambda: not here.engine.scheduler.live, "it has ended")
        assert not here.engine.scheduler.aborted
        check(seen + resume(here, seen[-1][0]), whole)


def test_one_that_did_not_ask_for_it_is_aborted_and_forgotten(tmp_path: Path) -> None:
    with gateway(tmp_path, pace=0.01) as here:
        seen = ask(here, "/v1/completions", 5, headers={})
        until(lambda: bool(here.engine.scheduler.aborted), "it is aborted at once")
        assert [number for number, _ in seen] == [""] * 5
        name = json.loads(seen[0][1])["id"]
        response = httpx.get(f"{here.url}/v1/streams/{name}")
        assert (response.status_code, error_of(response)["code"]) == (404, "stream_not_found")
        assert not (tmp_path / "journal").exists() or "chatcmpl" not in name


def test_after_a_failure_the_stream_can_be_resumed(tmp_path: Path) -> None:
    """The error is an event without an id: the last one that counts is that of the answer."""
    from baton.protocol import Failed

    with gateway(tmp_path) as here:
        whole = ask(here, "/v1/completions")
        here.engine.scheduler.fail = Failed(0, "bad_logits", "No numbers.")
        here.engine.scheduler.fail_after = 9
        seen = ask(here, "/v1/completions")
        assert seen[-1][0] == "" and "bad_logits" in seen.pop()[1]
        here.engine.scheduler.fail = None
        check(seen + resume(here, seen[-1][0]), whole)


def test_what_cannot_be_resumed(tmp_path: Path) -> None:
    """R03, R07"""
    with gateway(tmp_path) as here:
        seen = ask(here, "/v1/completions")
        name = seen[0][0].rpartition(":")[0]
        url = f"{here.url}/v1/streams/"
        for path, last, status in (
            (name, f"{name}:x", 400),
            (name, "5", 404),
            (name, "garbage", 400),
            (name, f"{name}:-1", 400),
            (name, f"{name}:{len(seen)}", 400),
            (name, f"{name}:999999999", 400),
            (name, f"cmpl-other:{len(seen)}", 404),
            ("cmpl-other", "", 404),
            ("..%2fx", "", 404),
            ("x" * 5000, "", 404),
        ):
            headers = {"last-event-id": last} if last else {}
            response = httpx.get(url + path, headers=headers)
            assert response.status_code == status, (path, last)
            code = "invalid_value" if status == 400 else "stream_not_found"
            assert error_of(response)["code"] in {code, None}
        response = httpx.get(url + name, headers={"last-event-id": seen[-1][0]})
        assert response.status_code == 204


@pytest.mark.parametrize(
    ("header", "fields", "code"),
    [
        ("yes", {"stream": True}, "invalid_value"),
        ("1", {}, "invalid_value"),
        ("1", {"stream": True, "use_beam_search": True}, "unsupported_value"),
    ],
)
def test_what_cannot_be_durable(
    tmp_path: Path, header: str, fields: dict[str, Any], code: str
) -> None:
    with gateway(tmp_path) as here:
        body = completion(**fields)
        response = httpx.post(
            f"{here.url}/v1/completions", json=body, headers={"x-stream-durable": header}
        )
        assert (response.status_code, error_of(response)["code"]) == (400, code)


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    """A10: the same tenant by another key may, another tenant finds nothing."""
    keys = tmp_path / "keys"
    rows = [("a", "one"), ("b", "one"), ("c", "two")]
    keys.write_text(
        "\n".join(
            f'[[key]]\nname = "{name}"\nkey = "key-of-{name}"\ntenant = "{tenant}"'
            for name, tenant in rows
        )
    )

    def bearer(name: str) -> dict[str, str]:
        return {"authorization": f"Bearer key-of-{name}"}

    with (
        gateway(tmp_path, 0.01, api_key_file=keys) as one,
        gateway(tmp_path, 0.01, api_key_file=keys) as two,
    ):
        seen = ask(one, "/v1/completions", 5, headers=DURABLE | bearer("a"))
        name = seen[0][0].rpartition(":")[0]
        for here in (one, two):
            found = httpx.get(f"{here.url}/v1/streams/{name}", headers=bearer("c"))
            assert (found.status_code, error_of(found)["code"]) == (404, "stream_not_found")
        assert one.engine.scheduler.live, "nobody else's question disturbs it"
        seen += resume(two, seen[-1][0], **bearer("b"))
        assert seen[-1][1] == "[DONE]"


def test_a_journal_that_cannot_be_used_is_a_503(tmp_path: Path) -> None:
    with gateway(tmp_path / "file" / "x") as here:
        (tmp_path / "file").write_text("not a directory")
        body = completion(stream=True)
        response = httpx.post(f"{here.url}/v1/completions", json=body, headers=DURABLE)
        assert (response.status_code, error_of(response)["code"]) == (503, "journal_unavailable")
        until(lambda: not here.engine.scheduler.live, "its work is aborted")


def test_a_resumed_stream_waits_for_a_worker(tmp_path: Path) -> None:
    """Longer than a new request would: what has begun pauses, and does not end with an error."""
    with gateway(tmp_path) as one:
        whole = ask(one, "/v1/completions")
        seen = ask(one, "/v1/completions", 5)
    with gateway(tmp_path) as two, ThreadPoolExecutor(1) as pool:
        workers, two.engine.scheduler.workers = two.engine.scheduler.workers, ()
        until(lambda: "no worker" in httpx.get(f"{two.url}/health").text, "the worker is gone")
        resumed = pool.submit(resume, two, seen[-1][0])
        time.sleep(1.0)  # five times as long as a new request waits
        assert not resumed.done() and not two.engine.scheduler.live
        two.engine.scheduler.workers = workers
        check(seen + resumed.result(timeout=60), whole)


def test_a_resumed_stream_that_waits_in_vain_is_paused(tmp_path: Path) -> None:
    with gateway(tmp_path) as one:
        whole = ask(one, "/v1/completions")
        seen = ask(one, "/v1/completions", 5)
    with gateway(tmp_path, request_timeout_seconds=0.5) as two:
        two.engine.scheduler.workers = ()
        until(lambda: "no worker" in httpx.get(f"{two.url}/health").text, "the worker is gone")
        assert "stream_paused" in resume(two, seen[-1][0])[-1][1]
    with gateway(tmp_path) as three:
        check(seen + resume(three, seen[-1][0]), whole)


THOUGHT = 'hm</think>I add.<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "Grüße"}}\n'
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@contextmanager
def with_tools(folder: Path) -> Iterator[Site]:
    """A gateway of a model that thinks and calls."""
    with gateway(folder) as here:
        here.engine.scheduler.reply = f"{THOUGHT}</tool_call>"
        tokenizer = here.engine.tokenizer
        tokenizer.tool_call_parser, tokenizer.reasoning_parser = "hermes", "qwen3"
        tokenizer.tail = "<think>\n"
        tokenizer.restart()
        until(lambda: here.engine.tokenizers.infos == [tokenizer.hello().tokenizer], "a greeting")
        yield here


def deltas(events: Frames) -> list[Any]:
    """Deltas and finish reasons; ids of calls too, which are a function of the request."""
    bodies = [json.loads(data) for _, data in events if data != "[DONE]"]
    return [(c["delta"], c["finish_reason"]) for body in bodies for c in body["choices"]]


@pytest.mark.parametrize("at", [2, 8, 24])
def test_thinking_and_calls_go_on_at_another_gateway(tmp_path: Path, at: int) -> None:
    """Left while it thinks, behind its text, and within the arguments."""
    path = "/v1/chat/completions"
    with with_tools(tmp_path) as first:
        seen = ask(first, path, at, tools=[TOOL])
    with with_tools(tmp_path) as second:
        seen += resume(second, seen[-1][0])
        name = seen[0][0].rpartition(":")[0]
        assert [number for number, _ in seen] == [f"{name}:{i}" for i in range(len(seen))]
        replayed = resume(second, "", name=name)
    assert deltas(replayed) == deltas(seen)
    calls = [c for delta, _ in deltas(seen) for c in delta.get("tool_calls", ())]
    assert len({c["id"] for c in calls if "id" in c}) == 1
    arguments = "".join(c["function"]["arguments"] for c in calls)
    assert json.loads(arguments) == {"a": 1, "b": "Grüße"}
    reasoning = "".join(delta.get("reasoning_content", "") for delta, _ in deltas(seen))
    content = "".join(delta.get("content") or "" for delta, _ in deltas(seen))
    assert (reasoning, content) == ("hm", "I add.") and deltas(seen)[-1][1] == "tool_calls"
