"""Images of benchmarks: of the wanted size, new or repeated, in the chats that are sent."""

from __future__ import annotations

import base64
import io

import httpx
import pytest
from PIL import Image
from rich.console import Console

from baton.errors import SettingsError
from baton_ops.bench.images import Images
from baton_ops.bench.load_generator import Request, Target
from baton_ops.bench.prompts import IdPrompts, Lengths, requests
from baton_ops.bench.serve import Bench, run


def test_images_have_their_size_and_are_new_or_repeated() -> None:
    first, second = Images(2, (100, 70), 0, 1).next()
    assert first != second
    kind, data = first.split(",")
    assert kind == "data:image/jpeg;base64"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (100, 70)
    few = Images(1, (64, 64), 2, 1)
    shown = [few.next() for _ in range(5)]
    assert len(set(shown)) == 2 and shown[0] == shown[2] == shown[4]


def test_a_chat_has_its_images_before_its_text() -> None:
    [asked] = requests(IdPrompts([1], 0), Lengths("fixed", 3, 2), 1, 0, Images(2, (8, 8), 1, 0))
    target = Target(httpx.AsyncClient(), "m", "chat")
    path, body = target._ask(Request("hi", 2, asked.images))
    [message] = body["messages"]
    assert path == "/v1/chat/completions"
    assert [part["type"] for part in message["content"]] == ["image_url", "image_url", "text"]
    assert message["content"][0]["image_url"]["url"] == asked.images[0]


def test_completions_take_no_images() -> None:
    with pytest.raises(SettingsError, match="--endpoint chat"):
        run(Bench(images=1, url="http://127.0.0.1:9"), Console())
