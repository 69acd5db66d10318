"""The gateway on a socket, used through OpenAI's own client."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Iterator

import openai
import pytest

from baton.errors import SettingsError
from baton.process.lifecycle import Lifecycle
from baton.protocol import Failed
from baton_gateway.__main__ import grpc_server, listen, protocol, run, server
from baton_gateway.app import create_app
from baton_gateway.config import Config
from tests.fakes.gateway_engine import MODEL, FakeEngine

REPLY = "Hello from Baton."
KEY = "sk-baton-test"


class Running:
    """A server in a thread."""

    def __init__(self) -> None:
        config = Config(api_key=KEY, service_wait_seconds=0.3)
        self.engine = FakeEngine(config)
        self._socket = listen(config.model_copy(update={"port": 0}))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        self._server = server(config, create_app(config, self.engine))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.run(self._server.serve([self._socket]))

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def client(self, key: str = KEY) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def running() -> Iterator[Running]:
    here = Running()
    yield here
    here.close()


@pytest.fixture
def client(running: Running) -> Iterator[openai.OpenAI]:
    with running.client() as client:
        yield client


@pytest.mark.row("F18.01")
def test_chat(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "hi"}]
    whole = client.chat.completions.create(
        model=MODEL,
        messages=messages,
        logprobs=True,
        top_logprobs=1,  # type: ignore[arg-type]
    )
    assert whole.choices[0].message.content == REPLY
    assert whole.choices[0].finish_reason == "stop" and whole.usage
    assert whole.usage.prompt_tokens_details and whole._request_id
    content = whole.choices[0].logprobs and whole.choices[0].logprobs.content
    assert content and content[0].token == "H" and content[0].top_logprobs[0].token == "a"
    with client.chat.completions.stream(
        model=MODEL,
        messages=messages,
        stream_options={"include_usage": True},  # type: ignore[arg-type]
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == REPLY
    assert final.usage and final.usage.completion_tokens == len(REPLY) + 1


@pytest.mark.row("F18.02")
def test_completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt=["a", "b"], logprobs=1, echo=True)
    assert [c.text for c in whole.choices] == ["a" + REPLY[:16], "b" + REPLY[:16]]
    parts = client.completions.create(model=MODEL, prompt=[104], stream=True, max_tokens=5)
    assert "".join(part.choices[0].text for part in parts) == REPLY[:5]


@pytest.mark.row("F18.11")
def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_error_classes(running: Running, client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "hi"}]

    def create(model: str = MODEL, **fields: object) -> None:
        client.chat.completions.create(model=model, messages=messages, **fields)  # type: ignore[call-overload]

    with pytest.raises(openai.BadRequestError) as bad:
        create(temperature=9)
    assert (bad.value.code, bad.value.param) == ("decimal_above_max_value", "temperature")
    assert bad.value.request_id
    with pytest.raises(openai.NotFoundError):
        create("other")
    with running.client("wrong") as stranger, pytest.raises(openai.AuthenticationError) as denied:
        stranger.models.list()
    assert denied.value.code == "invalid_api_key"
    running.engine.scheduler.fail = Failed(0, "queue_timeout", "Busy.", 503, 1)
    with pytest.raises(openai.InternalServerError) as busy:
        create()
    assert busy.value.status_code == 503 and busy.value.response.headers["retry-after"] == "1"
    running.engine.scheduler.fail_after = 2
    stream = client.chat.completions.create(model=MODEL, messages=messages, stream=True)  # type: ignore[call-overload]
    with pytest.raises(openai.APIError, match="Busy"):
        list(stream)


def test_breaking_off_a_stream_frees_its_sequence(running: Running, client: openai.OpenAI) -> None:
    scheduler = running.engine.scheduler
    scheduler.reply, scheduler.pace = "x" * 400, 0.01
    stream = client.completions.create(model=MODEL, prompt="a", stream=True, max_tokens=400)
    next(iter(stream))
    assert scheduler.live
    stream.close()
    freed = threading.Event()
    for _ in range(200):
        if not scheduler.live:
            break
        freed.wait(0.01)
    assert scheduler.aborted and not scheduler.live


def test_draining(run_dir: object) -> None:
    """The first signal ends the service when nothing runs."""

    async def main() -> int:
        life = Lifecycle(drain_seconds=5.0)
        config = Config(port=0, run_dir=run_dir, shutdown_timeout=5.0)
        task = asyncio.create_task(run(config, life))
        await asyncio.sleep(0.3)
        life.stop()
        async with asyncio.timeout(60):
            return await task

    assert asyncio.run(main()) == 0


def test_gateways_share_a_port_when_all_of_them_want_to() -> None:
    with listen(Config(port=0, shared_port=True)) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))  # It takes none before it serves.
        first.listen()
        listen(Config(port=port, shared_port=True)).close()
        with pytest.raises(SettingsError, match=f"Cannot listen on 127.0.0.1:{port}"):
            listen(Config(port=port))


def test_addresses_that_cannot_be_listened_on() -> None:
    with listen(Config(port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(SettingsError, match=f"Cannot listen on 127.0.0.1:{port}"):
            listen(Config(port=port))
    with pytest.raises(SettingsError, match=r"Cannot listen on 1\.2:3:0 \(no such host\)"):
        listen(Config(host="1.2:3", port=0))
    with pytest.raises(SettingsError, match="at least 1 character"):  # It would mean every address.
        Config.load(["--host", ""])


def test_the_protocol_has_the_time_limits_of_the_settings() -> None:
    assert protocol(Config(slow_client_seconds=7.0)).unread_seconds == 7.0


def test_grpc_is_there_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert grpc_server(Config()) is None
    assert grpc_server(Config(grpc_port=1)) is not None
    monkeypatch.setitem(sys.modules, "baton_gateway.grpc.server", None)
    with pytest.raises(SettingsError, match=r"baton-serve\[grpc\]"):
        grpc_server(Config(grpc_port=1))
