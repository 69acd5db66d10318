"""Files and batches as OpenAI's client uses them, and who may see them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.fakes.gateway_app import Site, error_of, site
from tests.fakes.gateway_engine import MODEL
from tests.support.gateway.batch_records import line

KEYS = {"alice": "sk-alice-123", "bob": "sk-bob-45678"}


def client(here: Site, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key=key, base_url="http://localhost/v1", http_client=here.client, max_retries=0
    )


def lines(number: int) -> bytes:
    asked = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    wrong = line("wrong", **asked, n=0)
    return b"".join(line(f"r{n}", **asked) for n in range(number)) + wrong


async def ended(own: openai.AsyncOpenAI, name: str) -> Any:
    async with asyncio.timeout(60):
        while (batch := await own.batches.retrieve(name)).status in (
            "validating",
            "in_progress",
            "finalizing",
        ):
            await asyncio.sleep(0.05)
    return batch


@pytest.mark.row("F18.07", "F18.08", "F18.10")
def test_a_batch_with_openais_client() -> None:
    with site() as here:

        async def main() -> None:
            own = client(here)
            file = await own.files.create(file=("in.jsonl", lines(30)), purpose="batch")
            assert (file.filename, file.bytes) == ("in.jsonl", len(lines(30)))
            made = await own.batches.create(
                input_file_id=file.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={"who": "me"},
            )
            batch = await ended(own, made.id)
            assert batch.status == "completed" and batch.metadata == {"who": "me"}
            counts = batch.request_counts
            assert (counts.total, counts.completed, counts.failed) == (31, 30, 1)
            output = (await own.files.content(batch.output_file_id)).text
            answers = [json.loads(text) for text in output.splitlines()]
            assert [one["custom_id"] for one in answers] == [f"r{n}" for n in range(30)]
            assert answers[0]["response"]["body"]["object"] == "chat.completion"
            errors = json.loads((await own.files.content(batch.error_file_id)).text)
            assert errors["response"]["body"]["error"]["param"] == "n"
            assert [b.id async for b in own.batches.list()] == [made.id]
            known = [f.id async for f in own.files.list()]
            assert set(known) == {file.id, batch.output_file_id, batch.error_file_id}
            await own.files.delete(file.id)
            assert [f.id async for f in own.files.list(purpose="batch")] == []

        here.run(main)


@pytest.mark.row("F18.09")
def test_a_batch_is_cancelled() -> None:
    with site(max_batch_requests=1) as here:
        here.engine.scheduler.pace = 0.05

        async def main() -> None:
            own = client(here)
            file = await own.files.create(file=("in.jsonl", lines(100)), purpose="batch")
            made = await own.batches.create(
                input_file_id=file.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
            )
            await asyncio.sleep(0.8)
            assert (await own.batches.cancel(made.id)).status == "cancelling"
            async with asyncio.timeout(60):
                while (await own.batches.retrieve(made.id)).status != "cancelled":
                    await asyncio.sleep(0.05)

        here.run(main)


def test_what_is_stored_belongs_to_the_key_that_made_it(tmp_path: Any) -> None:
    path = tmp_path / "keys.toml"
    rows = (f'[[key]]\nname = "{name}"\nkey = "{key}"\n' for name, key in KEYS.items())
    path.write_text("".join(rows))
    with site(api_key_file=path) as here:

        async def main() -> None:
            alice, bob = client(here, KEYS["alice"]), client(here, KEYS["bob"])
            file = await alice.files.create(file=("in.jsonl", lines(1)), purpose="batch")
            about: dict[str, Any] = {
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
            }
            made = await alice.batches.create(input_file_id=file.id, **about)
            for attempt in (
                bob.files.retrieve(file.id),
                bob.files.content(file.id),
                bob.files.delete(file.id),
                bob.batches.retrieve(made.id),
                bob.batches.cancel(made.id),
                bob.batches.create(input_file_id=file.id, **about),
            ):
                with pytest.raises(openai.NotFoundError):
                    await attempt
            assert [b.id async for b in bob.batches.list()] == []
            assert [f.id async for f in bob.files.list()] == []
            assert (await ended(alice, made.id)).status == "completed"

        here.run(main)


def test_what_is_no_batch_is_refused_by_name() -> None:
    with site(max_file_bytes=10_000) as here:
        good = {
            "input_file_id": "file-x",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        for change, param in (
            ({"endpoint": "/v1/images"}, "endpoint"),
            ({"completion_window": "1d"}, "completion_window"),
            ({"completion_window": "169h"}, "completion_window"),
            ({"input_file_id": 5}, "input_file_id"),
        ):
            assert error_of(here.post("/v1/batches", good | change))["param"] == param
        missing = here.post("/v1/batches", good)
        assert missing.status_code == 404 and error_of(missing)["code"] == "file_not_found"
        for name in ("nothing", "file-1"):
            assert here.get(f"/v1/files/{name}/content").status_code == 404
        assert here.get("/v1/files?limit=0").status_code == 400
        assert error_of(here.get("/v1/batches?after=x"))["param"] == "after"
        upload = {"files": {"file": ("a", b"x")}}
        wrong = here.request("POST", "/v1/files", data={"purpose": "assistants"}, **upload)
        assert error_of(wrong)["param"] == "purpose"
        data = here.request("POST", "/v1/files", data={"purpose": "user_data"}, **upload).json()
        refused = here.post("/v1/batches", good | {"input_file_id": data["id"]})
        assert error_of(refused)["param"] == "input_file_id"
