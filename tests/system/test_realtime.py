"""Live transcripts over a WebSocket, through every service: Whisper."""

from __future__ import annotations

import asyncio
import base64
import json
import socket as socket_module
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI
from websockets import Origin, Subprotocol
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from baton_gateway.http.websocket.protocol import MAX_MESSAGE_BYTES, WebSocketProtocol
from baton_gateway.speech.turn_detector import (
    SpeechAudio,
    SpeechEnd,
    SpeechStart,
    TurnDetector,
)
from tests.fakes.listening import listening
from tests.fakes.whole_system import Whole, whole
from tests.support.realtime_client import APPEND, COMMIT, RealtimeClient, opened, pcm
from tests.support.served_system import PATIENCE
from tests.support.tiny_whisper import RATE, Samples, save_whisper, sound, wav

ITEM = "conversation.item.input_audio_transcription"
SHORT, LONG = sound(1.7), sound(5.3, 3)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    folder = tmp_path_factory.mktemp("models") / "whisper"
    save_whisper(folder)
    worker = {"block_size": 4, "max_num_seqs": 3}
    with whole(folder, worker=worker, realtime_window_seconds=2.0) as system:
        yield system


def written(here: Whole, samples: Samples, **fields: Any) -> str:
    """The text by /v1/audio/transcriptions."""
    data = {"model": here.model} | fields
    files = {"file": ("a.wav", wav(samples), "audio/wav")}
    answer = here.request("POST", "/v1/audio/transcriptions", data=data, files=files)
    assert answer.status_code == 200
    return str(answer.json()["text"])


@pytest.mark.row("F18.20")
def test_what_is_said_live_is_what_a_recording_says(here: Whole) -> None:
    """As vLLM's clients ask and as OpenAI's do; the text of what is complete comes before the
    commit; one item follows another."""
    texts = {name: written(here, samples) for name, samples in (("s", SHORT), ("l", LONG))}
    german = written(here, LONG, language="de", prompt="the relay runner")

    async def main() -> None:
        async with listening(here.app) as at, opened(at) as socket:
            client = RealtimeClient(socket)
            created = await client.next()
            assert created["type"] == "session.created" and created["id"].startswith("sess_")
            await client.send("session.update", model=here.model)
            assert (await client.next())["type"] == "session.updated"
            await client.send(COMMIT)  # It begins.
            await client.append(LONG)
            early = await client.until("transcription.delta")
            await client.send(COMMIT, final=True)
            events = early + await client.until("transcription.done")
            deltas = [event["delta"] for event in events[:-1]]
            assert "".join(deltas) == events[-1]["text"] == texts["l"] and len(deltas) > 5
            usage = events[-1]["usage"]
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            assert usage["prompt_tokens"] > 400

            await client.append(LONG)
            await client.until("transcription.delta")
            await client.send("input_audio_buffer.clear")
            await client.until("input_audio_buffer.cleared")
            await client.append(SHORT)
            await client.send(COMMIT)
            events = await client.until("transcription.done")
            assert "".join(event["delta"] for event in events[:-1]) == texts["s"]

            input_ = {"format": {"type": "audio/pcm", "rate": RATE}, "turn_detection": None}
            speech = {"model": here.model}
            audio = {"input": input_ | {"transcription": speech}}
            await client.send("session.update", session={"type": "transcription", "audio": audio})
            session = (await client.next())["session"]
            assert session["audio"]["input"]["format"]["rate"] == RATE
            await client.append(SHORT)
            await client.send(COMMIT)
            speech |= {"language": "de", "prompt": "the relay runner"}
            await client.send("session.update", session={"audio": audio})
            await client.append(LONG)
            await client.send(COMMIT)
            events = [await client.next()]
            while [e["type"] for e in events].count(f"{ITEM}.completed") < 2:
                events.append(await client.next())
            items = [e["item_id"] for e in events if e["type"] == "input_audio_buffer.committed"]
            ends = [e for e in events if e["type"] == f"{ITEM}.completed"]
            assert [e["item_id"] for e in ends] == items and len(set(items)) == 2
            assert [e["transcript"] for e in ends] == [texts["s"], german]
            for end in ends:
                parts = [e["delta"] for e in events if e["type"] == f"{ITEM}.delta"
                         and e["item_id"] == end["item_id"]]  # fmt: skip
                assert "".join(parts) == end["transcript"]
                assert end["usage"]["input_token_details"]["audio_tokens"] in (100, 400)

            await client.send("session.update", language="de")
            shown = (await client.next())["session"]["audio"]["input"]
            assert shown["format"]["rate"] == RATE == 16_000
            assert shown["transcription"]["prompt"] == "the relay runner"
            await client.append(LONG)
            await client.send(COMMIT, final=True)
            assert (await client.until("transcription.done"))[-1]["text"] == german

    here.run(main)
    assert not here.engine._scheduler.live


@pytest.mark.row("F18.20")
def test_turns_of_the_client_are_items(here: Whole) -> None:
    """Each is the text of a recording of it; the client may commit one before it ends."""
    still, asked = np.zeros(RATE, np.float32), {"type": "server_vad", "silence_duration_ms": 400}
    samples = np.concatenate((still, sound(0.9), still, sound(1.2, 3), still))
    detector = TurnDetector(RATE, 0.5, 300, 400)
    heard, parts = list[bytearray](), list(detector.hear(pcm(samples)))
    for part in parts:
        if isinstance(part, SpeechStart):
            heard.append(bytearray())
        if not isinstance(part, SpeechEnd):
            heard[-1] += part.data
    texts = [written(here, np.frombuffer(audio, "<i2") / np.float32(32767)) for audio in heard]
    assert len(texts) == 2

    async def main() -> None:
        async with listening(here.app) as at, opened(at) as socket:
            client = RealtimeClient(socket)
            await client.next()
            input_ = {"format": {"type": "audio/pcm", "rate": RATE}, "turn_detection": asked}
            await client.send("session.update", session={"audio": {"input": input_}})
            shown = (await client.next())["session"]["audio"]["input"]["turn_detection"]
            assert shown == asked | {"threshold": 0.5, "prefix_padding_ms": 300}
            await client.append(samples)
            events = [await client.next()]
            while [e["type"] for e in events].count(f"{ITEM}.completed") < 2:
                events.append(await client.next())
            buffer = [e for e in events if e["type"].startswith("input_audio_buffer")]
            kinds = ["speech_started", "speech_stopped", "committed"] * 2
            assert [e["type"].rpartition(".")[2] for e in buffer] == kinds
            times = [e[key] for e in buffer for key in e if key.endswith("_ms")]
            assert times == [part.ms for part in parts if not isinstance(part, SpeechAudio)]
            items = [e["item_id"] for e in buffer]
            assert items == [items[0]] * 3 + [items[3]] * 3
            assert buffer[5]["previous_item_id"] == items[0] != items[3]
            ends = {e["item_id"]: e for e in events if e["type"] == f"{ITEM}.completed"}
            assert [ends[name]["transcript"] for name in (items[0], items[3])] == texts
            await client.append(np.concatenate((still, sound(0.9))))
            started = await client.until("input_audio_buffer.speech_started")
            await client.send(COMMIT)
            early = await client.until(f"{ITEM}.completed")
            assert early[-1]["item_id"] == started[-1]["item_id"]
            await client.append(still)
            await client.send(COMMIT)
            error = (await client.until("error"))[-1]["error"]
            assert error["code"] == "input_audio_buffer_commit_empty"

    here.run(main)
    assert not here.engine._scheduler.live


@pytest.mark.row("F18.20")
def test_wrong_events_are_answered_and_harm_nothing(here: Whole) -> None:
    """Each has one error with its code, and the session goes on: audio that was there stays."""
    wanted = written(here, SHORT)
    update: dict[str, Any] = {"type": "session.update", "model": here.model}
    few = {"type": APPEND, "audio": base64.b64encode(bytes(640)).decode()}

    def session(**fields: Any) -> dict[str, Any]:
        return {"type": "session.update", "session": {"audio": {"input": fields}}}

    format_, turns = "session.audio.input.format", "session.audio.input.turn_detection"
    vad: dict[str, Any] = {"type": "server_vad"}

    def turning(**fields: Any) -> dict[str, Any]:
        return session(turn_detection=vad | fields)

    cases: tuple[tuple[Any, str | None, str | None], ...] = (
        ("{", "invalid_json", None),
        (b"\0", "invalid_json", None),
        ("[" * 100_000, "invalid_value", None),
        ({"type": 5}, "invalid_value", None),
        ({"type": "response.create"}, "unknown_event", "type"),
        ({"type": COMMIT, "final": True}, "input_audio_buffer_commit_empty", None),
        ({"type": APPEND, "audio": "!"}, "invalid_value", "audio"),
        ({"type": APPEND, "audio": "AA=="}, "invalid_value", "audio"),
        ({"type": APPEND, "audio": ""}, "invalid_value", "audio"),
        ({"type": APPEND}, "invalid_value", None),
        (update | {"pad": "x" * 65_536}, None, None),
        (update | {"model": "nobody"}, "model_not_found", "model"),
        (update | {"language": "xx"}, "invalid_value", "language"),
        (update | {"session": {"type": "realtime"}}, "invalid_value", "session.type"),
        (session(format={"rate": 1}), "integer_below_min_value", f"{format_}.rate"),
        (session(format={"type": "audio/pcmu"}), "invalid_value", f"{format_}.type"),
        (session(turn_detection={"type": "semantic_vad"}), "invalid_value", f"{turns}.type"),
        (turning(threshold=2), "decimal_above_max_value", f"{turns}.threshold"),
        (turning(create_response=True), "unsupported_parameter", "create_response"),
        (update | {"turn_detection": vad}, "unsupported_parameter", "turn_detection"),
    )

    async def refused(
        client: RealtimeClient, code: str | None, param: str | None, name: str | None
    ) -> None:
        event = await client.next()
        assert event["type"] == "error", event
        found = event["error"]
        assert (found["code"], found["param"], found["event_id"]) == (code, param, name), found
        assert found["type"] == "invalid_request_error" and found["message"]

    async def main() -> None:
        async with listening(here.app) as at, opened(at) as socket:
            client = RealtimeClient(socket)
            await client.next()
            for event, code, param in cases:
                named = isinstance(event, dict) and event["type"] != 5
                if named and code == "input_audio_buffer_commit_empty":
                    await client.send("input_audio_buffer.clear")
                    assert (await client.next())["type"] == "input_audio_buffer.cleared"
                    await socket.send(json.dumps(few))
                if named:
                    event = json.dumps(event | {"event_id": "x"})
                raw = json.dumps(event) if isinstance(event, dict) else event
                await socket.send(raw)
                await refused(client, code, param, "x" if named else None)
            await client.send("input_audio_buffer.clear")
            await client.until("input_audio_buffer.cleared")
            await client.append(SHORT)
            await socket.send(json.dumps(session(format={"rate": 8000})))
            await refused(client, "invalid_value", f"{format_}.rate", None)
            await socket.send(json.dumps(session(format={"rate": RATE}, turn_detection=vad)))
            await refused(client, "invalid_value", turns, None)
            await client.send(COMMIT)
            events = await client.until("transcription.done")
            assert events[-1]["text"] == wanted
            for _ in range(64):
                await socket.send("no")
            with pytest.raises(ConnectionClosed) as ended:
                while True:
                    assert (await client.next())["type"] == "error"
            assert ended.value.rcvd is not None and ended.value.rcvd.code == 1008

    here.run(main)


@pytest.mark.row("F18.20")
def test_openai_s_client(here: Whole) -> None:
    files = {"file": ("a.wav", wav(SHORT), "audio/wav")}
    fields = {"model": here.model, "include[]": "logprobs"}
    answer = here.request("POST", "/v1/audio/transcriptions", data=fields, files=files).json()

    async def main() -> None:
        async with listening(here.app) as at:
            client = AsyncOpenAI(
                base_url=f"http://{at}/v1", websocket_base_url=f"ws://{at}/v1", api_key="none"
            )
            query = {"intent": "transcription"}
            async with client, client.realtime.connect(extra_query=query) as session:
                await session.session.update(
                    session={
                        "type": "transcription",
                        "include": ["item.input_audio_transcription.logprobs"],
                        "audio": {
                            "input": {
                                "format": {"type": "audio/pcm", "rate": RATE},  # type: ignore[typeddict-item]
                                "transcription": {"model": here.model},
                            }
                        },
                    }
                )
                audio = base64.b64encode(pcm(SHORT)).decode()
                await session.input_audio_buffer.append(audio=audio)
                await session.input_audio_buffer.commit()
                text, numbers = "", list[float]()
                async for event in session:
                    assert event.type != "error", event
                    if event.type == f"{ITEM}.delta":
                        text += event.delta or ""
                        numbers += [entry.logprob for entry in event.logprobs or ()]
                    if event.type == f"{ITEM}.completed":
                        assert event.transcript == text == answer["text"]
                        assert numbers == [entry.logprob for entry in event.logprobs or ()]
                        found = [entry["logprob"] for entry in answer["logprobs"]]
                        assert numbers == pytest.approx(found, abs=1e-5)
                        break

    here.run(main)


@pytest.mark.row("F18.20")
def test_who_may_open_a_session(tmp_path: Path) -> None:
    """Keys by header and by subprotocol, limits of keys, pages of other sites, room."""
    save_whisper(tmp_path / "whisper")
    keys = tmp_path / "keys.toml"
    keys.write_text(
        '[[key]]\nname = "one"\nkey = "secret-one"\nrequests_per_minute = 1\n'
        '[[key]]\nname = "two"\nkey = "secret-two"\nmodels = ["other"]\n'
    )

    async def denied(at: str, path: str = "/v1/realtime", **options: Any) -> tuple[int, str]:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"ws://{at}{path}", **options):
                pass
        answer = refused.value.response
        assert answer.headers["x-request-id"].startswith("req_")
        error = json.loads(answer.body)["error"]
        return answer.status_code, error["code"] or error["message"]

    async def closed() -> None:
        async with listening(site.app) as at:
            assert (await denied(at))[0] == 401
            wrong = [Subprotocol("realtime"), Subprotocol("openai-insecure-api-key.nobody")]
            assert await denied(at, subprotocols=wrong) == (401, "invalid_api_key")
            right = [*wrong[:1], Subprotocol("openai-insecure-api-key.secret-one")]
            async with opened(at, subprotocols=right, origin=Origin("https://a.b")) as socket:
                assert socket.subprotocol == "realtime"
                client = RealtimeClient(socket)
                await client.next()
                await client.send("session.update", model="whisper")
                await client.next()
                for number in range(2):
                    await client.append(SHORT)
                    await client.send(COMMIT)
                    events = await client.until("error" if number else "transcription.done")
                assert events[-1]["error"]["code"] == "rate_limit_exceeded"
            headers = {"authorization": "Bearer secret-two"}
            async with opened(at, additional_headers=headers) as socket:
                client = RealtimeClient(socket)
                await client.next()
                await client.send("session.update", model="whisper")
                assert (await client.next())["error"]["code"] == "model_not_found"

    async def free() -> None:
        async with listening(site.app) as at:
            assert await denied(at, origin=Origin("https://a.b")) == (403, "cross_origin")
            headers = {"sec-fetch-site": "cross-site"}
            assert (await denied(at, additional_headers=headers))[0] == 403
            host, _, port = at.partition(":")
            there = {"host": host, "port": int(port)}
            assert (await denied("rebound.example", **there))[0] == 421
            assert (await denied(at, "/v1/chat/completions"))[0] == 400
            async with opened(at, origin=Origin(f"http://{at}")):
                assert await denied(at) == (503, "server_is_overloaded")

    with whole(tmp_path / "whisper", api_key_file=keys) as site:
        site.run(closed)
    with whole(tmp_path / "whisper", max_realtime_sessions=1) as site:
        site.run(free)


@pytest.mark.row("F18.20")
def test_sessions_end_in_order(
    here: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that leaves, one that is idle, one that reads nothing, one that sends more than
    there is room for, a gateway that drains: nothing is left, and what was said is written."""
    text = written(here, LONG)

    async def left() -> None:
        async with listening(here.app) as at:
            async with opened(at) as socket:
                client = RealtimeClient(socket)
                await client.next()
                await client.send("session.update", model=here.model)
                await client.append(LONG)
                await client.send(COMMIT)
                await client.until("transcription.delta")
            async with asyncio.timeout(PATIENCE):
                while here.engine._scheduler.live or here.engine.metrics.realtime.open:
                    await asyncio.sleep(0.01)

    async def drained() -> None:
        stop = asyncio.Event()
        async with listening(here.app, stop) as at, opened(at) as socket:
            client = RealtimeClient(socket)
            await client.next()
            await client.send("session.update", model=here.model)
            await client.append(LONG)
            await client.until("transcription.delta")
            stop.set()
            events = await client.until("transcription.done")
            assert events[-1]["text"] == text
            with pytest.raises(ConnectionClosed) as ended:
                await client.next()
            assert ended.value.rcvd is not None and ended.value.rcvd.code == 1012

    async def bounded() -> None:
        async with listening(strict.app) as at, opened(at) as socket:
            client = RealtimeClient(socket)
            await client.next()
            for _ in range(2):
                await client.append(sound(20.0), RATE * 20)
            assert (await client.next())["error"]["code"] == "input_audio_buffer_full"
            await client.until("transcription.done")  # Of what was there.
            with pytest.raises(ConnectionClosed) as ended:
                await client.next()
            assert ended.value.rcvd is not None and ended.value.rcvd.code == 1008
            with pytest.raises(ConnectionClosed) as ended:
                async with opened(at) as other:
                    await other.send("x" * (MAX_MESSAGE_BYTES + 1))
                    while True:
                        await other.recv()
            assert ended.value.rcvd is not None and ended.value.rcvd.code == 1009

    async def unread() -> None:
        async with listening(strict.app) as at:
            address, _, port = at.partition(":")
            plain = socket_module.socket()
            plain.setsockopt(socket_module.SOL_SOCKET, socket_module.SO_RCVBUF, 4096)
            plain.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(plain, (address, int(port)))
            head = "GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            head += "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            head += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            await loop.sock_sendall(plain, head.encode())
            assert (await loop.sock_recv(plain, 1)) == b"H"
            event = json.dumps({"type": "session.update", "language": None}).encode()
            frame = bytes([0x81, 0x80 | len(event), 0, 0, 0, 0]) + event
            with pytest.raises(ConnectionError):
                async with asyncio.timeout(PATIENCE):
                    while True:
                        await loop.sock_sendall(plain, frame * 100)
            plain.close()
            async with asyncio.timeout(PATIENCE):
                while strict.engine.metrics.realtime.open:
                    await asyncio.sleep(0.01)

    monkeypatch.setattr(WebSocketProtocol, "linger_seconds", 0.2)
    here.run(left)
    here.run(drained)
    save_whisper(tmp_path / "whisper")
    limits: dict[str, Any] = {"max_audio_clip_filesize_mb": 1, "slow_client_seconds": 0.3}
    with whole(tmp_path / "whisper", realtime_idle_seconds=0.5, **limits) as strict:
        strict.run(bounded)
        strict.run(unread)
    assert "baton_websocket_connections_active 0.0" in here.get("/metrics").text
