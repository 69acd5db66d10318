"""GET /fleet and /fleet/stream"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from baton.protocol import WorkerStats
from tests.fakes.gateway_app import Site


def test_snapshot(shared_site: Site) -> None:
    shared_site.run(lambda: asyncio.sleep(0.3))
    body = shared_site.get("/fleet").json()
    assert (body["model"], body["max_model_len"]) == ("tiny", 512)
    assert {s["service"]: s["state"] for s in body["services"]} == {
        "gateway": "ready",
        "tokenizer": "ready",
        "mm-preprocess": "ready",
        "scheduler": "ready",
        "worker": "ready",
    }
    assert all(set(s) == {"service", "name", "state", "detail"} for s in body["services"])
    (worker,) = body["workers"]
    assert set(worker) == set(WorkerStats.__struct_fields__)
    assert (worker["name"], worker["pages_total"]) == ("worker-1", 100)
    assert (body["tokens_per_second"], body["preemptions"], body["waiting"]) == (12.5, 3, 0)


def test_stream_ends_when_the_client_leaves(shared_site: Site) -> None:
    async def main() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        left = asyncio.Event()
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/fleet/stream",
            "raw_path": b"/fleet/stream",
            "query_string": b"",
            "headers": [],
        }

        async def receive() -> dict[str, Any]:
            if not sent:
                return {"type": "http.request", "body": b"", "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if len(sent) == 3:
                left.set()

        async with asyncio.timeout(60):
            await shared_site.app(scope, receive, send)
        return sent

    sent = shared_site.run(main)
    frames = [m["body"] for m in sent if m["type"] == "http.response.body"]
    assert all(frame.startswith(b"data: {") for frame in frames[:2])
    assert json.loads(frames[0].split(b"data: ")[1])["model"] == "tiny"
