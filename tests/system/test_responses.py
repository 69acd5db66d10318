"""The Responses API of `baton serve`, with OpenAI's client: also when processes are killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.support.served_system import PATIENCE, Served, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the process table in /proc"),
]
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
ASKED: dict[str, Any] = {
    "model": "hf",
    "input": "Once upon a time",
    "temperature": 0,
    "max_output_tokens": 400,
    "extra_body": {"ignore_eos": True},
}


class Point(BaseModel):
    """What a client wants to have parsed."""

    x: bool


@pytest.fixture(scope="module")
def served(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("responses")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    flags = ("--tokenizer.chat-template", str(template), "--worker.threads", "1")
    server = Served(folder, stories, *flags, "--worker.dtype", "float32")
    try:
        yield server.ready()
    finally:
        server.close()


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Any]:
    # Retries: for some moments after a kill there is no gateway to connect to.
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=20) as client:
        yield client.responses


def ended(client: Any, name: str) -> Any:
    """A response in the background, once it has ended."""
    deadline = time.monotonic() + PATIENCE
    while (found := client.retrieve(name)).status == "in_progress":
        assert time.monotonic() < deadline, "it hangs"
        time.sleep(0.1)
    return found


@pytest.mark.row("F18.04", "F18.05")
def test_responses_are_created_streamed_parsed_and_kept(client: Any) -> None:
    said = client.create(**ASKED)
    assert said.status == "incomplete" and said.usage.output_tokens == 400
    with client.stream(**ASKED) as stream:
        *_, last = stream
    final = last.response  # type: ignore[union-attr]
    assert last.type == "response.incomplete" and final.output_text == said.output_text
    assert client.retrieve(final.id).to_dict() == final.to_dict()
    parsed = client.parse(**ASKED | {"text_format": Point, "extra_body": {}})
    assert isinstance(parsed.output_parsed, Point)
    follow = ASKED | {"input": "The end", "previous_response_id": said.id, "max_output_tokens": 4}
    assert client.create(**follow).usage.input_tokens > said.usage.input_tokens + 300
    client.delete(said.id)
    with pytest.raises(openai.NotFoundError):
        client.retrieve(said.id)


@pytest.mark.row("F18.06")
def test_a_response_in_the_background_survives_the_kill_of_a_process(
    served: Served, client: Any
) -> None:
    """And says the very same: it is continued from its log. So does one that is being read."""
    whole = ended(client, client.create(**ASKED, background=True).id).output_text
    for service in ("gateway", "worker"):
        stream = client.create(**ASKED, background=True, stream=True)
        seen = [event for event, _ in zip(stream, range(30), strict=False)]
        stream.close()
        name = seen[0].response.id
        os.kill(served.pids()[service], signal.SIGKILL)
        found = ended(client, name)
        assert found.status == "incomplete" and found.output_text == whole, service
        seen += client.retrieve(name, stream=True, starting_after=seen[-1].sequence_number)
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        assert seen[-1].response.output_text == whole


def test_a_response_in_the_background_is_cancelled(client: Any) -> None:
    """Unless it has ended before."""

    def cancelled() -> bool:
        said = client.create(**ASKED, background=True)
        status = client.cancel(said.id).status
        assert status in ("cancelled", "incomplete")
        return bool(status == "cancelled")

    until(cancelled, "one is cancelled")
