"""Small real weights in fp32 through five real processes: exact, and exact again after a crash."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.served_system import PATIENCE, Served, until
from tests.support.system.running_system import works
from tests.support.system.streams import (
    frames,
    stream,
    text_of,
)

pytestmark = pytest.mark.slow
EXACT = ("--worker.dtype", "float32", "--worker.threads", "1")


class Collector(ThreadingHTTPServer):
    """An OTLP/HTTP collector that remembers (trace id, service, span name)."""

    def __init__(self) -> None:
        self.spans: list[tuple[bytes, str, str]] = []
        super().__init__(("127.0.0.1", 0), _Export)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Export(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {a.key: a.value.string_value for a in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.server.spans.append((span.trace_id, names["service.name"], span.name))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as server:
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def served(
    stories: Path, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    # Whoever is stopped here comes back: where nobody supervises, nobody replaces it either.
    flags = (*EXACT, "--otlp-endpoint", collector.url, "--stopped-process-seconds", "0")
    system = Served(tmp_path_factory.mktemp("relay"), stories, *flags)
    try:
        yield system.ready()
    finally:
        system.close()


@pytest.mark.row("T01", "F09.01", "F09.10", "F13.01")
def test_golden_tokens_and_logprobs_all_at_once(served: Served, assets: Path) -> None:
    golden = json.loads((assets / "stories260k" / "golden_greedy.json").read_text())
    cases = golden["cases"] if isinstance(golden, dict) else golden

    def run(case: dict[str, Any]) -> dict[str, Any]:
        ids = case["prompt_ids"]
        number = len(case["output_ids"])
        answer = served.complete(
            prompt=ids, max_tokens=number, ignore_eos=True, return_token_ids=True, logprobs=0
        )
        choice: dict[str, Any] = answer.json()["choices"][0]
        return choice

    with ThreadPoolExecutor(len(cases)) as pool:
        for case, choice in zip(cases, pool.map(run, cases), strict=True):
            assert choice["token_ids"] == case["output_ids"]
            assert choice["logprobs"]["token_logprobs"] == pytest.approx(case["logprobs"], abs=1e-3)


@pytest.mark.row("F12.01")
def test_a_client_that_leaves_frees_its_pages(served: Served) -> None:
    until(lambda: served.pages_held() == 0, "all pages free before")
    events = stream(served.url, prompt="Once upon a time", max_tokens=450)
    next(events)
    until(lambda: served.pages_held() > 0, "pages in use while it runs")
    events.close()
    until(lambda: served.pages_held() == 0, "all pages free after")


@pytest.mark.row("F12.02", "F12.12")
def test_a_prefix_hit_is_told_and_changes_no_token(served: Served) -> None:
    def reset() -> int:
        answer = httpx.post(f"{served.url}/reset_prefix_cache", timeout=PATIENCE)
        return int(answer.json()["pages"])

    def run() -> tuple[str, int]:
        story = "Once upon a time there was a little girl. " * 4
        answer = served.complete(prompt=story, temperature=1.0, seed=5, max_tokens=60).json()
        details = answer["usage"]["prompt_tokens_details"]
        return answer["choices"][0]["text"], details["cached_tokens"]

    until(lambda: served.pages_held() == 0, "all pages free before")
    reset()
    (cold, nothing), (warm, cached) = run(), run()
    assert warm == cold and nothing == 0 < cached
    until(lambda: served.pages_held() == 0, "all pages free after")
    assert reset() > 0 and reset() == 0
    assert run() == (cold, 0)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.0, "seed": 5}])
def test_kill_9_of_the_worker_is_a_pause_and_never_a_different_answer(
    served: Served, sampling: dict[str, Any]
) -> None:
    ask = {"prompt": "Once upon a time", "max_tokens": 400, "repetition_penalty": 1.1} | sampling
    undisturbed = text_of(list(stream(served.url, **ask)))
    events = stream(served.url, **ask)
    seen = [next(events) for _ in range(5)]
    os.kill(served.pids()["worker"], signal.SIGKILL)
    seen += events
    assert text_of(seen) == undisturbed
    assert seen[-1]["choices"][0]["finish_reason"] == "length"


def test_kill_9_of_the_tokenizer_is_a_pause_too(served: Served) -> None:
    ask = {"prompt": "Once upon a time", "max_tokens": 400}
    undisturbed = text_of(list(stream(served.url, **ask)))
    events = stream(served.url, **ask)
    seen = [next(events) for _ in range(5)]
    os.kill(served.pids()["tokenizer"], signal.SIGKILL)
    seen += events
    assert text_of(seen) == undisturbed


SCHEMA = {"type": "array", "items": {"type": "string"}, "minItems": 4, "maxItems": 12}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 1.0, "seed": 5, "presence_penalty": 0.5, "frequency_penalty": 0.5},
        {"temperature": 1.0, "seed": 6, "n": 3, "stop": ["zz", "qx"]},
        {"temperature": 1.0, "seed": 7, "guided_json": SCHEMA, "ignore_eos": False},
    ],
    ids=["greedy", "penalties", "choices", "schema"],
)
def test_kill_9_of_the_scheduler_is_a_pause_too(served: Served, fields: dict[str, Any]) -> None:
    ask = {"prompt": "Once upon a time", "max_tokens": 350, "repetition_penalty": 1.1} | fields
    undisturbed = by_choice(stream(served.url, **ask))
    events = stream(served.url, **ask)
    seen = [next(events) for _ in range(5)]
    before = served.pids()
    os.kill(before["scheduler"], signal.SIGKILL)
    seen += events
    assert by_choice(seen) == undisturbed
    assert len(undisturbed) == fields.get("n", 1)
    until(lambda: served.pids().keys() == before.keys(), "everybody is there")
    after = served.pids()
    assert after.pop("scheduler") != before.pop("scheduler") and after == before
    until(lambda: served.pages_held() == 0, "all pages free after")


def test_what_was_computed_is_found_by_the_next_scheduler(served: Served) -> None:
    ask = {"prompt": "There was a cat who liked to sit in the sun. " * 4, "temperature": 0}

    def run() -> tuple[str, int]:
        answer = served.complete(**ask, max_tokens=8).json()
        details = answer["usage"]["prompt_tokens_details"]
        return answer["choices"][0]["text"], details["cached_tokens"]

    cold, _ = run()
    now = served.fleet()["uptime"]  # The names of its last pages are told with a delay.
    until(lambda: served.fleet()["uptime"] > now + 1.0, "the scheduler has told the worker all")
    os.kill(served.pids()["scheduler"], signal.SIGKILL)
    until(lambda: works(served.url), "the next one is there")
    warm, cached = run()
    assert warm == cold and cached >= 48


def test_a_scheduler_that_is_stopped_for_a_while_is_a_pause(served: Served) -> None:
    """It is taken for lost, and then it goes on as if nothing had been."""
    ask = {"prompt": "Once upon a time", "max_tokens": 400, "temperature": 1.0, "seed": 8}
    undisturbed = by_choice(stream(served.url, **ask))
    events = stream(served.url, **ask)
    seen = [next(events) for _ in range(5)]
    scheduler = served.pids()["scheduler"]
    os.kill(scheduler, signal.SIGSTOP)
    try:
        until(lambda: not _healthy(served), "it is missed")
    finally:
        os.kill(scheduler, signal.SIGCONT)
    seen += events
    assert by_choice(seen) == undisturbed
    until(lambda: served.pages_held() == 0, "all pages free after")


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0, "stream_options": {"include_usage": True}},
        {"temperature": 1.0, "seed": 6, "n": 2, "stop": ["zz", "qx"], "presence_penalty": 0.5},
        {"temperature": 1.0, "seed": 7, "guided_json": SCHEMA, "logprobs": 1},
    ],
    ids=["greedy", "choices", "schema"],
)
def test_kill_9_of_the_gateway_and_the_stream_is_resumed(
    served: Served, fields: dict[str, Any]
) -> None:
    """The journal outlives it: what follows is what would have followed, numbered on."""
    body = {"model": "hf", "stream": True, "prompt": "Once upon a time", "max_tokens": 350}
    body |= {"repetition_penalty": 1.1} | fields
    durable = {"X-Stream-Durable": "1"}
    undisturbed = [json.loads(data) for _, data in _read(served, "POST", body, durable)]
    seen = _read(served, "POST", body, durable, 7)
    for victim in ("gateway", "gateway", "worker"):
        _replace(served, victim)
        seen += _read(served, "GET", None, {"Last-Event-ID": seen[-1][0]}, 20)
    seen += _read(served, "GET", None, {"Last-Event-ID": seen[-1][0]})
    name = seen[0][0].rpartition(":")[0]
    assert [number for number, _ in seen] == [f"{name}:{i}" for i in range(len(seen))]
    events = [json.loads(data) for _, data in seen]
    assert by_choice(events) == by_choice(undisturbed)
    assert [e.get("usage") for e in events][-1] == [e.get("usage") for e in undisturbed][-1]
    assert _logprobs(events) == pytest.approx(_logprobs(undisturbed), abs=1e-4)


def _read(
    served: Served, method: str, body: Any, headers: dict[str, str], count: int = 10**6
) -> list[tuple[str, str]]:
    """So many events of a new stream, or of that which `headers` resume."""
    name = headers.get("Last-Event-ID", "").rpartition(":")[0]
    url = served.url + ("/v1/completions" if body else f"/v1/streams/{name}")
    with httpx.stream(method, url, json=body, headers=headers, timeout=PATIENCE) as answer:
        assert answer.status_code == 200, answer.read()
        events = frames(answer.iter_lines())
        return [e for e, _ in zip(events, range(count), strict=False) if e[1] != "[DONE]"]


def _replace(served: Served, victim: str) -> None:
    """Kill a service and wait for the next one."""
    before = served.pids()[victim]
    os.kill(before, signal.SIGKILL)
    until(lambda: served.pids().get(victim, before) != before, f"a new {victim}")
    until(lambda: _healthy(served), "everything is there again")


def _healthy(served: Served) -> bool:
    try:
        return httpx.get(f"{served.url}/health", timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False


def _logprobs(events: list[dict[str, Any]]) -> list[float]:
    found = [c["logprobs"] for e in events for c in e["choices"] if c["logprobs"]]
    return [value for one in found for value in one["token_logprobs"]]


def by_choice(events: Iterable[dict[str, Any]]) -> dict[int, tuple[str, str | None]]:
    """Text and finish reason of every choice."""
    found: dict[int, tuple[str, str | None]] = {}
    for event in events:
        assert "error" not in event, event
        for choice in event["choices"]:
            text, reason = found.get(choice["index"], ("", None))
            assert reason is None, "nothing follows the end"
            found[choice["index"]] = text + choice["text"], choice["finish_reason"]
    assert all(reason for _, reason in found.values()), "every choice has an end"
    return found


@pytest.mark.row("F19.01")
def test_a_stopped_worker_turns_health_false_and_its_return_turns_it_true(served: Served) -> None:
    def health() -> int:
        return httpx.get(f"{served.url}/health", timeout=PATIENCE).status_code

    until(lambda: health() == 200, "healthy before")
    worker = served.pids()["worker"]
    os.kill(worker, signal.SIGSTOP)
    try:
        until(lambda: health() == 503, "a stopped worker is noticed")
    finally:
        os.kill(worker, signal.SIGCONT)
    until(lambda: health() == 200, "healthy again")
    assert served.complete(prompt="Once").status_code == 200


def sampled(served: Served, **fields: Any) -> list[str]:
    answer = served.complete(prompt="Once upon a time", temperature=1.0, max_tokens=48, **fields)
    return [choice["text"] for choice in answer.json()["choices"]]


@pytest.mark.row("F09.02", "F09.04", "F13.01")
def test_a_seed_gives_the_same_tokens_whatever_else_runs(served: Served) -> None:
    alone = [sampled(served, seed=seed, top_p=0.95) for seed in range(4)]
    with ThreadPoolExecutor(12) as pool:
        runs = pool.map(lambda seed: sampled(served, seed=seed, top_p=0.95), range(12))
        assert list(runs)[:4] == alone
    assert len({text for [text] in alone}) == 4


def test_choices_of_one_request_differ_and_the_first_is_the_seeds_own(served: Served) -> None:
    four = sampled(served, seed=7, n=4)
    assert len(set(four)) == 4
    assert sampled(served, seed=7) == four[:1]


BAD = [
    {"prompt": [-1]},
    {"prompt": [2**40]},
    {"prompt": ""},
    {"prompt": "x", "temperature": -1},
    {"prompt": "x", "max_tokens": 0},
    {"prompt": "x", "logit_bias": {"999999": 1}},
    {"prompt": "y " * 5000},
    {"prompt": "x", "n": 10**9},
]


def test_bad_requests_cost_the_others_nothing(served: Served) -> None:
    before = served.pids()
    ask = {"prompt": "Once upon a time", "max_tokens": 200}
    undisturbed = text_of(list(stream(served.url, **ask)))
    events = stream(served.url, **ask)
    seen = [next(events)]
    for fields in BAD:
        answer = served.complete(**fields)
        assert answer.status_code in (200, 400), answer.text
    seen += events
    assert text_of(seen) == undisturbed
    assert served.pids() == before


def test_one_trace_runs_through_every_service(served: Served, collector: Collector) -> None:
    served.complete(prompt="Once upon a time")

    def joined() -> bool:
        traces: dict[bytes, set[str]] = {}
        for trace, service, _ in list(collector.spans):
            traces.setdefault(trace, set()).add(service)
        wanted = {"baton-gateway", "baton-tokenizer", "baton-scheduler", "baton-worker"}
        return any(wanted <= services for services in traces.values())

    until(joined, "spans of all four services in one trace")
