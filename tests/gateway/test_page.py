"""The page in a real browser, against a small server that provides the gateway's two streams."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import math
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.testclient import TestClient
from PIL import Image

from baton.errors import NotFound
from baton_gateway import page
from tests.support.sounds import encoded, tones

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
ANSWER = (
    "Two runners, one short breath:\n"
    "the first gives all that it knows,\n"
    "the second runs on.\n\n"
    "In a relay the hand-over decides the race. The same is true here: prefill reads the whole "
    "prompt once and leaves its keys and values in pages, and decode takes them over without "
    "reading the prompt again."
)

BLIND = "The model SmolLM2 does not take image input. It takes text only."


def worker(name: str, used: int, phase: float, role: str = "both") -> dict[str, Any]:
    """One worker in the shape of `baton.protocol.WorkerStats`."""
    rate = 212.0 + 24 * math.sin(phase) + 9 * math.sin(3.1 * phase)
    return {
        "name": name,
        "role": role,
        "state": "ready",
        "device": "cpu",
        "dtype": "bfloat16",
        "running": 9,
        "pages_total": 4096,
        "pages_free": 4096 - used,
        "steps": 18_400,
        "step_ms": 31.4 + 2 * math.sin(phase),
        "tokens_per_second": rate,
        "weight_bytes": 269_000_000,
        "kv_bytes": 1_509_949_440,
    }


def fleet(tick: int) -> dict[str, Any]:
    """The gateway's view of a busy system, a second after the last."""
    workers = [worker("worker-0", 2310 + 7 * tick, tick / 5), worker("worker-1", 1432, tick / 7)]
    services = [
        {"service": "gateway", "state": "ready", "detail": "version 0.1.0, 21 requests"},
        {"service": "tokenizer", "state": "ready", "detail": "version 0.1.0"},
        {"service": "mm-preprocess", "state": "ready", "detail": "version 0.1.0"},
        {"service": "scheduler", "state": "ready", "detail": "version 0.1.0"},
        {"service": "worker", "state": "ready", "detail": "cpu bfloat16, 9 running"},
        {"service": "worker", "state": "ready", "detail": "cpu bfloat16, 9 running"},
    ]
    services = [{**row, "name": f"{row['service']}-{i}"} for i, row in enumerate(services)]
    return {
        "model": "SmolLM2-135M-Instruct",
        "max_model_len": 8192,
        "services": services,
        "workers": workers,
        "waiting": 3,
        "running": 18,
        "tokens_per_second": sum(w["tokens_per_second"] for w in workers),
        "preemptions": 2,
        "finished": 1284 + tick,
        "tokens": 164_352 + 430 * tick,
        "uptime": 4210.0 + tick,
    }


class Gateway:
    """A FastAPI app with the page and the two streams that it reads. Prompts choose the answer."""

    def __init__(self) -> None:
        self.tick = 0
        self.sees = True
        self.pause = 0.01
        self.fleet: Callable[[int], dict[str, Any]] = fleet
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.left = threading.Event()
        self.app = FastAPI()
        self.app.include_router(page.router)
        self.app.post("/v1/chat/completions", response_model=None)(self.chat)
        self.app.get("/fleet/stream", response_model=None)(self.stream)
        self.app.add_exception_handler(NotFound, _not_found)

    async def chat(self, request: Request) -> JSONResponse | StreamingResponse:
        body = await request.json()
        self.asked.append(body)
        if body.get("tools"):
            return StreamingResponse(_called(body["messages"]), media_type="text/event-stream")
        self.keys.append(request.headers.get("authorization"))
        text = body["messages"][-1]["content"]
        if text == "refuse":
            error = {"message": "<b>Too</b> long.", "type": "x", "param": None, "code": "too_long"}
            return JSONResponse({"error": error}, status_code=400)
        if not self.sees and not isinstance(text, str):
            return JSONResponse({"error": {"message": BLIND, "code": None}}, status_code=400)
        return StreamingResponse(self._answer(text), media_type="text/event-stream")

    async def _answer(self, text: str) -> AsyncIterator[str]:
        words = "<img src=x onerror=boom()> " * 3 if text == "markup" else ANSWER
        try:
            for i, word in enumerate(words.split(" ")):
                yield _event({"choices": [{"delta": {"content": word + " "}}]})
                await asyncio.sleep(3600 if text == "forever" and i == 3 else self.pause)
                if text == "break" and i == 3:
                    yield _event({"error": {"message": "The worker was lost.", "code": "gone"}})
                    return
        except asyncio.CancelledError:
            self.left.set()
            raise
        yield _event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        yield _event({"choices": [], "usage": {"completion_tokens": 77}})
        yield "data: [DONE]\n\n"

    async def stream(self) -> StreamingResponse:
        return StreamingResponse(self._ticks(), media_type="text/event-stream")

    async def _ticks(self) -> AsyncIterator[str]:
        while True:
            self.tick += 1
            yield _event(self.fleet(self.tick))
            await asyncio.sleep(0.02)


async def _called(messages: list[dict[str, Any]]) -> AsyncIterator[str]:
    """Thinks, calls both tools, and says what it was told."""
    told = [m["content"] for m in messages if m["role"] == "tool"]
    deltas: list[dict[str, Any]] = [{"content": f"It is {'; '.join(told)}."}]
    if not told:
        clock, sum_ = {"name": "clock", "arguments": ""}, {"name": "calculator", "arguments": ""}
        deltas = [
            {"reasoning_content": "The user wants "},
            {"reasoning_content": "<b>two</b> things."},
            {"content": "Let me look. "},
            {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": clock}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"time_zone": "UTC"}'}}]},
            {"tool_calls": [{"index": 1, "id": "c2", "type": "function", "function": sum_}]},
            {"tool_calls": [{"index": 1, "function": {"arguments": '{"expression": '}}]},
            {"tool_calls": [{"index": 1, "function": {"arguments": '"-2^2 + 3*(4-1.5)"}'}}]},
        ]
    for delta in deltas:
        yield _event({"choices": [{"delta": delta}]})
        await asyncio.sleep(0.01)
    yield _event({"choices": [{"delta": {}, "finish_reason": "stop" if told else "tool_calls"}]})
    yield "data: [DONE]\n\n"


async def _not_found(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": {"message": str(error)}}, status_code=404)


def _event(data: object) -> str:
    return f"data: {json.dumps(data)}\n\n"


class Site:
    """A gateway on a port of its own, which can be taken down and brought back."""

    def __init__(self) -> None:
        self.gateway = Gateway()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        config = uvicorn.Config(
            self.gateway.app,
            port=self.port,
            lifespan="off",
            log_config=None,
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()


@pytest.fixture
def site() -> Iterator[Site]:
    running = Site()
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium found: install it (apt-get install chromium) to test the page")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def tab(browser: Any, site: Site) -> Iterator[Any]:
    """A page that has loaded and sees the fleet. Anything the console calls an error fails."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    opened = context.new_page()
    opened.set_default_timeout(10_000)
    opened.goto(site.url)
    opened.wait_for_selector("#link[data-state=ready]")
    yield opened
    context.close()


def ask(tab: Any, text: str) -> None:
    tab.fill("#prompt", text)
    tab.press("#prompt", "Enter")


def answered(tab: Any, count: int = 1) -> str:
    """Wait until `count` answers are complete; the text of the last."""
    tab.wait_for_function(
        "n => document.querySelectorAll('.turn.assistant:not(.running)').length === n", arg=count
    )
    return str(tab.inner_text(".turn.assistant:last-child .text"))


def test_streams_an_answer_and_shows_its_figures(tab: Any, site: Site) -> None:
    ask(tab, "Write a haiku.")
    assert answered(tab).split() == ANSWER.split()
    figures = tab.inner_text(".turn.assistant .meta")
    assert "77 tokens" in figures and "tokens/s" in figures and "first token after" in figures
    body = site.gateway.asked[0]
    assert body["model"] == "SmolLM2-135M-Instruct" and body["stream"] is True
    assert body["messages"] == [{"role": "user", "content": "Write a haiku."}]
    assert body["temperature"] == 0.2 and site.gateway.keys == [None]
    # A limit of the page's own would be refused where a context has less room.
    assert "max_tokens" not in body


def test_settings_and_history_go_with_the_next_question(tab: Any, site: Site) -> None:
    ask(tab, "One.")
    first = answered(tab)
    tab.click("#options")
    values = {"system": "Be brief.", "temperature": "0.2", "max_tokens": "64", "seed": "7"}
    for name, value in {**values, "key": "secret"}.items():
        tab.fill(f"#{name}", value)
    ask(tab, "Two.")
    answered(tab, 2)
    body = site.gateway.asked[1]
    assert [m["role"] for m in body["messages"]] == ["system", "user", "assistant", "user"]
    assert body["messages"][2]["content"].split() == first.split()
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.2, 64, 7)
    assert site.gateway.keys[1] == "Bearer secret"
    assert tab.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0


def test_stop_keeps_what_was_said_and_disconnects(tab: Any, site: Site) -> None:
    ask(tab, "forever")
    tab.wait_for_function(
        "() => document.querySelector('.turn.assistant .text')?.textContent.length > 9"
    )
    tab.click("#stop")
    assert answered(tab).startswith("Two runners")
    assert tab.inner_text(".turn.assistant .meta") == "stopped"
    assert site.gateway.left.wait(60)
    ask(tab, "again")
    assert answered(tab, 2).split() == ANSWER.split()


def test_an_error_event_and_a_refusal_are_shown_as_errors(tab: Any) -> None:
    ask(tab, "break")
    answered(tab)
    assert tab.inner_text(".turn.failed [role=alert]") == "The worker was lost. (gone)"
    tab.click("#clear")
    tab.fill("#prompt", "")
    ask(tab, "refuse")
    answered(tab)
    assert tab.inner_text(".turn.failed [role=alert]") == "<b>Too</b> long. (too_long)"
    assert tab.input_value("#prompt") == "refuse"


def test_markup_from_a_model_stays_text(tab: Any) -> None:
    ask(tab, "markup")
    assert "<img src=x onerror=boom()>" in answered(tab)
    assert tab.locator(".log img").count() == 0


def test_thinking_is_folded_and_calls_are_answered_by_the_page(tab: Any, site: Site) -> None:
    tab.click("#options")
    tab.check("#tools")
    ask(tab, "What time is it, and what is -2^2 + 3*(4-1.5)?")
    said = answered(tab)
    assert said.startswith("It is ") and said.endswith("; 3.5.") and "UTC" in said
    assert tab.inner_text(".thought summary").startswith("Thought for ")
    assert not tab.is_visible(".thinking")
    tab.click(".thought summary")
    assert tab.inner_text(".thinking") == "The user wants <b>two</b> things."
    assert tab.locator(".call").count() == 2
    assert tab.inner_text(".call:last-of-type .result") == "3.5"
    assert tab.inner_text(".said").strip() == "Let me look."
    first, second = site.gateway.asked
    assert [tool["function"]["name"] for tool in first["tools"]] == ["clock", "calculator"]
    roles = [m["role"] for m in second["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]
    calls = second["messages"][1]["tool_calls"]
    assert [c["id"] for c in calls] == [m["tool_call_id"] for m in second["messages"][2:]]
    ask(tab, "And again?")
    answered(tab, 2)
    assert [m["role"] for m in site.gateway.asked[2]["messages"]] == [*roles, "assistant", "user"]


NO_FILE = "is no picture, clip or sound that this page takes."


def picture(kind: str, width: int, height: int, name: str = "") -> dict[str, Any]:
    """A file for a browser: a landscape of two colours under a sun."""
    image = Image.new("RGB", (width, height), (120, 178, 214))
    image.paste((226, 152, 84), (0, height // 2, width, height))
    image.paste((250, 236, 190), (width // 2, height // 4, width * 5 // 8, height // 2))
    file = io.BytesIO()
    image.save(file, kind)
    mime = f"image/{kind.lower()}"
    return {"name": name or f"sun.{kind.lower()}", "mimeType": mime, "buffer": file.getvalue()}


def sent(message: dict[str, Any]) -> list[tuple[str, bytes]]:
    """Media types and files of the pictures of a message, which come before its text."""
    urls = [p["image_url"]["url"] for p in message["content"] if p["type"] == "image_url"]
    split = [url.removeprefix("data:").split(";base64,") for url in urls]
    assert [p["type"] for p in message["content"]][: len(urls)] == ["image_url"] * len(urls)
    return [(mime, base64.b64decode(data)) for mime, data in split]


def attached(tab: Any) -> list[str]:
    """Names of the pictures in the composer."""
    names = "nodes => nodes.map(node => node.getAttribute('aria-label'))"
    found: list[str] = tab.eval_on_selector_all("#tray canvas", names)
    return found


def test_pictures_go_with_a_question_and_stay_in_its_history(tab: Any, site: Site) -> None:
    small, gif = picture("PNG", 40, 30), picture("GIF", 2000, 10)
    photo, extra = picture("JPEG", 1200, 3000), picture("WEBP", 1568, 20)
    tab.set_input_files("#file", [small, extra, photo])
    tab.wait_for_selector("#tray li:nth-child(3)")
    tab.set_input_files("#file", [gif])
    tab.wait_for_selector("#tray li:nth-child(4)")
    assert attached(tab) == ["sun.png", "sun.webp", "sun.jpeg", "sun.gif"]
    tab.click("[aria-label='Remove sun.webp']")
    ask(tab, "What is this?")
    answered(tab)
    assert attached(tab) == [] and tab.locator(".turn.user .pictures canvas").count() == 3
    [asked] = site.gateway.asked[0]["messages"]
    assert asked["content"][-1] == {"type": "text", "text": "What is this?"}
    first, second, third = sent(asked)
    assert first == ("image/png", small["buffer"])
    for (mime, file), kind, size in ((second, "jpeg", (627, 1568)), (third, "png", (1568, 8))):
        image = Image.open(io.BytesIO(file))
        assert (mime, image.size, image.format) == (f"image/{kind}", size, kind.upper())
        # The colours are those of the file, above and below.
        for y, colour in ((0, (120, 178, 214)), (size[1] - 1, (226, 152, 84))):
            pixel = image.convert("RGB").getpixel((0, y))
            assert isinstance(pixel, tuple)
            assert max(abs(a - b) for a, b in zip(pixel, colour, strict=True)) < 6
    ask(tab, "And now?")
    answered(tab, 2)
    again, _, last = site.gateway.asked[1]["messages"]
    assert again == asked and last == {"role": "user", "content": "And now?"}
    tab.set_input_files("#file", [small])  # a picture may be all of a question
    tab.wait_for_selector("#tray li")
    tab.press("#prompt", "Enter")
    answered(tab, 3)
    alone = site.gateway.asked[2]["messages"][-1]
    assert sent(alone) == [first] and len(alone["content"]) == 1


def clip(width: int = 160, height: int = 96) -> dict[str, Any]:
    """A file for a browser: six frames of one colour."""
    file = io.BytesIO()
    with av.open(file, "w", "webm") as out:
        stream = out.add_stream("vp8", rate=6)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        image = Image.new("RGB", (width, height), (120, 178, 214))
        for _ in range(6):
            out.mux(stream.encode(av.VideoFrame.from_image(image)))
        out.mux(stream.encode(None))
    return {"name": "sky.webm", "mimeType": "video/webm", "buffer": file.getvalue()}


def test_a_clip_goes_as_it_is_and_its_first_frame_stands_for_it(tab: Any, site: Site) -> None:
    moving = clip()
    tab.set_input_files("#file", [moving, picture("PNG", 40, 30)])
    tab.wait_for_selector("#tray li:nth-child(2)")
    assert attached(tab) == ["sky.webm", "sun.png"]
    corner = "node => [...node.getContext('2d').getImageData(2, 2, 1, 1).data]"
    shown = tab.eval_on_selector("#tray canvas", corner)
    assert max(abs(a - b) for a, b in zip(shown, (120, 178, 214, 255), strict=True)) < 12
    ask(tab, "What moves?")
    answered(tab)
    [asked] = site.gateway.asked[0]["messages"]
    video, image, text = asked["content"]
    data = base64.b64encode(moving["buffer"]).decode()
    assert video == {"type": "video_url", "video_url": {"url": f"data:video/webm;base64,{data}"}}
    assert (image["type"], text["text"]) == ("image_url", "What moves?")


def voice() -> dict[str, Any]:
    """A file for a browser: a second that is silent in its first half."""
    samples = np.concatenate((np.zeros(8000, np.float32), tones(0.5)))
    return {"name": "voice.wav", "mimeType": "audio/wav", "buffer": encoded(samples)}


def test_a_sound_goes_as_it_is_and_its_loudness_stands_for_it(tab: Any, site: Site) -> None:
    heard = voice()
    tab.set_input_files("#file", [heard])
    tab.wait_for_selector("#tray li")
    assert attached(tab) == ["voice.wav"]
    row = "(n, y) => [...n.getContext('2d').getImageData(0, y, n.width, 1).data]"
    above = tab.eval_on_selector("#tray canvas", row, 24)
    alpha = [above[at + 2] for at in range(0, len(above), 4)]
    silent, loud = alpha[: len(alpha) // 2 - 8], alpha[len(alpha) // 2 + 8 :]
    assert len(set(silent)) == 1 < len(set(loud)), "bars are high in the second half alone"
    ask(tab, "What is said?")
    answered(tab)
    [asked] = site.gateway.asked[0]["messages"]
    data = base64.b64encode(heard["buffer"]).decode()
    [sound, text] = asked["content"]
    assert sound == {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{data}"}}
    assert text["text"] == "What is said?"


def test_pictures_are_pasted_and_dropped_and_other_files_are_named(tab: Any) -> None:
    hand = """([target, kind, file]) => {
        const data = new DataTransfer();
        const bytes = Uint8Array.from(atob(file.bytes), (char) => char.charCodeAt());
        data.items.add(new File([bytes], file.name, { type: file.mime }));
        const how = { bubbles: true, cancelable: true, clipboardData: data, dataTransfer: data };
        const event = kind === "paste" ? new ClipboardEvent(kind, how) : new DragEvent(kind, how);
        return document.querySelector(target).dispatchEvent(event);
    }"""

    def give(target: str, kind: str, file: dict[str, Any]) -> bool:
        """Whether the browser would still do what it does by itself, such as to leave the page."""
        bytes_ = base64.b64encode(file["buffer"]).decode()
        sent = {"name": file["name"], "mime": file["mimeType"], "bytes": bytes_}
        return bool(tab.evaluate(hand, [target, kind, sent]))

    file = picture("PNG", 40, 30, "pasted.png")
    assert not give("#prompt", "paste", file)
    tab.wait_for_selector("#tray li")
    assert not give(".fleet", "dragover", file)
    assert "dropping" in tab.get_attribute("#composer", "class")
    assert not give(".fleet", "drop", {**file, "name": "dropped.png"})
    tab.wait_for_selector("#tray li:nth-child(2)")
    assert attached(tab) == ["pasted.png", "dropped.png"]
    assert "dropping" not in tab.get_attribute("#composer", "class")
    for name, mime, why in (
        (
            "notes.txt",
            "text/plain",
            f"notes.txt {NO_FILE}",
        ),
        ("torn.png", "image/png", "torn.png cannot be read as a picture."),
    ):
        tab.set_input_files("#file", [{"name": name, "mimeType": mime, "buffer": b"no picture"}])
        tab.wait_for_function(
            "why => document.querySelector('#figures').textContent === why", arg=why
        )
    assert attached(tab) == ["pasted.png", "dropped.png"]


def test_a_model_that_takes_text_only_says_so(tab: Any, site: Site) -> None:
    site.gateway.sees = False
    tab.set_input_files("#file", [picture("PNG", 40, 30)])
    tab.wait_for_selector("#tray li")
    ask(tab, "What is this?")
    answered(tab)
    assert tab.inner_text(".turn.failed [role=alert]") == BLIND
    assert tab.input_value("#prompt") == "What is this?" and attached(tab) == ["sun.png"]
    tab.click(".remove")
    tab.press("#prompt", "Enter")
    answered(tab, 2)
    assert site.gateway.asked[1]["messages"] == [{"role": "user", "content": "What is this?"}]


def test_the_calculator_runs_no_code(tab: Any) -> None:
    """Values, and what it tells the model of an expression that has none."""
    run = "async ([name, args]) => (await import('./static/tools.js')).run(name, args)"
    for expression, value in (
        ("1 + 2 * 3", "7"),
        ("2^3^2", "512"),
        ("(1+2)*-3 % 2", "-1"),
        ("1.5e2/3", "50"),
        ("alert(1)", "Error: 'a' is no number"),
        ("(1", "Error: a parenthesis is not closed"),
        ("1 2", "Error: '2' is not expected"),
        ("", "Error: 'the end' is no number"),
    ):
        args = json.dumps({"expression": expression})
        assert tab.evaluate(run, ["calculator", args]) == value, expression
    assert tab.evaluate(run, ["clock", '{"time_zone": "Nowhere"}']).startswith("Error: ")
    assert tab.evaluate(run, ["other", "{}"]) == "There is no tool 'other'."
    assert tab.evaluate(run, ["clock", "no json"]).startswith("Error: ")


def test_the_fleet_is_shown_and_changes(tab: Any, site: Site) -> None:
    assert tab.locator("#services > li").count() == 6
    assert tab.locator(".worker").count() == 2
    assert tab.inner_text(".worker:first-child .used").endswith("of 4,096 pages")
    assert tab.inner_text("#running") == "18"

    def changed(tick: int) -> dict[str, Any]:
        view = fleet(tick)
        view["services"][5]["state"] = "hung"
        return {**view, "workers": view["workers"][:1], "running": 1, "tokens_per_second": 0.0}

    site.gateway.fleet = changed
    tab.wait_for_selector("#services > li[data-state=hung]")
    assert tab.locator(".worker").count() == 1
    assert tab.inner_text("#running") == "1"


def test_it_reconnects_when_the_gateway_comes_back(tab: Any, site: Site) -> None:
    site.stop()
    tab.wait_for_selector("#link[data-state=lost]")
    assert "stale" in tab.get_attribute("#fleet", "class")
    ask(tab, "Anyone?")
    answered(tab)
    assert tab.inner_text(".turn.failed [role=alert]") == "The server cannot be reached."
    site.start()
    tab.wait_for_selector("#link[data-state=ready]")
    tab.click("#send")
    assert answered(tab, 2).split() == ANSWER.split()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_both_schemes_and_sizes(
    browser: Any, site: Site, tmp_path: Path, scheme: str, width: int, height: int
) -> None:
    size = {"width": width, "height": height}
    context = browser.new_context(viewport=size, color_scheme=scheme)
    tab, complaints = context.new_page(), []
    tab.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    own = (site.url, f"blob:{site.url}")
    tab.on("request", lambda r: complaints.append(r.url) if not r.url.startswith(own) else 0)
    tab.goto(site.url)
    tab.wait_for_selector("#link[data-state=ready]")
    tab.set_input_files("#file", [picture("PNG", 900, 600), picture("JPEG", 300, 800)])
    tab.wait_for_selector("#tray li:nth-child(2)")
    ask(tab, "Write a haiku about a relay race, and say what it has to do with serving a model.")
    answered(tab)
    tab.set_input_files("#file", [picture("PNG", 900, 600), clip(640, 360), voice()])
    tab.wait_for_selector("#tray li:nth-child(3)")
    tab.screenshot(path=tmp_path / f"page-{scheme}-{width}.png")
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) > 384) is (scheme == "light")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    context.close()
    assert complaints == []


def test_every_field_has_a_label(tab: Any) -> None:
    fields = "[...document.querySelectorAll('input, textarea')]"
    assert tab.evaluate(f"{fields}.length") == 8
    assert tab.evaluate(f"{fields}.filter(f => !f.labels.length).length") == 0


@pytest.fixture
def client() -> TestClient:
    return TestClient(Gateway().app)


def test_the_policy_allows_this_host_alone(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.headers["content-security-policy"].startswith("default-src 'self'; ")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "http://" not in answer.text and "https://" not in answer.text


@pytest.mark.parametrize("name", sorted(page._FILES - {"page.html"}))
def test_files_are_sent_once(client: TestClient, name: str) -> None:
    first = client.get(f"/static/{name}")
    assert first.status_code == 200 and first.content
    again = client.get(f"/static/{name}", headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304 and not again.content


@pytest.mark.parametrize("name", ["page.py", "..%2fpage.py", "%2e%2e", "", "page.css/x"])
def test_other_files_are_not_served(client: TestClient, name: str) -> None:
    assert client.get(f"/static/{name}").status_code == 404
