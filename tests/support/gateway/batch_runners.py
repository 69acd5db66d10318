"""Runs batches over an application that only answers, for tests."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from starlette.types import Receive, Scope, Send

from baton_gateway.access.api_keys import ApiKeys
from baton_gateway.batches.line_runner import LineRunner
from baton_gateway.batches.runner import BatchRunner
from baton_gateway.config import Config
from baton_gateway.durable.batch_record import Batch
from tests.support.gateway.batch_records import Stores


class Echo:
    """An application that answers with its request; "bad" is refused, "busy" at first."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.seen = seconds, Counter[str]()
        self.busiest = self._now = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = json.loads((await receive())["body"])
        self.seen[body["text"]] += 1
        self._now += 1
        self.busiest = max(self.busiest, self._now)
        await asyncio.sleep(self.seconds)
        self._now -= 1
        status = 400 if body["text"] == "bad" else 200
        if body["text"] == "busy" and self.seen["busy"] == 1:
            status = 503
        headers = [(b"x-request-id", b"req_1"), (b"retry-after", b"0")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})


def runner(here: Stores, app: Echo, **settings: Any) -> BatchRunner:
    config = Config(**settings)
    return BatchRunner(config, here.batches, here.files, LineRunner(app), ApiKeys(config))


async def ended(here: Stores, name: str = "batch_1") -> Batch:
    async with asyncio.timeout(60):
        while not (batch := await here.batches.get(name, "")).status.startswith(
            ("completed", "failed", "expired", "cancelled")
        ):
            await asyncio.sleep(0.02)
    return batch


def ids(lines: list[dict[str, Any]]) -> list[str]:
    return [one["custom_id"] for one in lines]
