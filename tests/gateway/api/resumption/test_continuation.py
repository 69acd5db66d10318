"""A recorded request is read again as it was read at first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton_gateway.http.body_reader import INLINE_BYTES, BodyReader
from tests.fakes.gateway_app import chat
from tests.fakes.gateway_socket import site


def test_a_large_body_is_parsed_off_the_event_loop_when_its_stream_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed, parse = list[int](), BodyReader.parse

    async def spy(self: BodyReader, data: bytes) -> dict[str, Any]:
        parsed.append(len(data))
        return await parse(self, data)

    monkeypatch.setattr(BodyReader, "parse", spy)
    body = json.dumps(chat(stream=True)) + " " * 2 * INLINE_BYTES
    with site(journal_path=tmp_path / "journal") as here:
        url = f"{here.url}/v1/chat/completions"
        headers = {"x-stream-durable": "1", "content-type": "application/json"}
        whole = httpx.post(url, content=body, headers=headers).text
        name = whole.partition("id: ")[2].partition(":")[0]
        again = httpx.get(f"{here.url}/v1/streams/{name}").text
    assert again == whole and "[DONE]" in whole
    assert parsed == [len(body)] * 2
