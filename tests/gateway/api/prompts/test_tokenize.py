"""POST /tokenize and /detokenize"""

from __future__ import annotations

import pytest

from tests.fakes.gateway_app import Site
from tests.fakes.gateway_engine import MAX_LENGTH, MODEL


@pytest.mark.row("F18.12")
def test_text_and_messages(shared_site: Site) -> None:
    expected = {"count": 3, "max_model_len": MAX_LENGTH, "tokens": [256, 104, 105]}
    text = shared_site.post("/tokenize", {"model": MODEL, "prompt": "hi"}).json()
    assert text == expected | {"token_strs": None}
    chat = {"messages": [{"role": "user", "content": "hi"}], "return_token_strs": True}
    named = shared_site.post("/tokenize", chat).json()
    assert named == expected | {"token_strs": ["<s>", "h", "i"]}
    bare = {"prompt": "hi", "add_special_tokens": False}
    assert shared_site.post("/tokenize", bare).json()["tokens"] == [104, 105]


@pytest.mark.row("F18.13")
def test_round_trip(shared_site: Site) -> None:
    text = "Grüße, 🫠"
    ids = shared_site.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert shared_site.post("/detokenize", {"tokens": ids}).json() == {"prompt": "<s>" + text}
    bare = {"model": MODEL, "tokens": ids, "skip_special_tokens": True}
    assert shared_site.post("/detokenize", bare).json() == {"prompt": text}


def test_unknown_model(shared_site: Site) -> None:
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": []})):
        assert shared_site.post(path, body | {"model": "other"}).status_code == 404
