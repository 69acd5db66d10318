"""A filled template equals a newly encoded chunk."""

from __future__ import annotations

from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from baton_gateway.schemas.chat_responses import ChatChunkChoice, ChatDelta
from baton_gateway.schemas.completion_responses import Completion, CompletionChoice
from baton_gateway.streaming.chunk_template import ChunkTemplate

ODD = 'a "text":"" \\ "token_ids":[] \n\u2028 \x00 €😀'


def _completion(text: str, ids: list[int] | None) -> bytes:
    choice = CompletionChoice(3, text, token_ids=UNSET if ids is None else ids)
    chunk = Completion(
        id="x", created=1, model=ODD, system_fingerprint=ODD, choices=[choice], usage=None
    )
    return msgspec.json.encode(chunk)


@given(st.text(), st.lists(st.integers(0, 2**31 - 1), max_size=4))
def test_any_text_and_any_ids(text: str, ids: list[int]) -> None:
    assert ChunkTemplate(_completion("", []), "text").fill(text, array("i", ids)) == _completion(
        text, ids
    )
    plain = ChunkTemplate(_completion("", None), "text")
    assert plain.fill(text, array("i", ids)) == _completion(text, None)


@pytest.mark.parametrize("text", [ODD, "", "\ufffd", '"}]}'])
def test_odd_text(text: str) -> None:
    encode = msgspec.json.encode
    template = ChunkTemplate(
        encode(ChatChunkChoice(0, ChatDelta(content=""), token_ids=[])), "content"
    )
    whole = ChatChunkChoice(0, ChatDelta(content=text), token_ids=[7, 8])
    assert template.fill(text, array("i", [7, 8])) == encode(whole)


def test_there_must_be_something_to_fill_in() -> None:
    with pytest.raises(AssertionError, match="no empty content"):
        ChunkTemplate(msgspec.json.encode(ChatChunkChoice(0, ChatDelta())), "content")
