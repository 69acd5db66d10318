"""Conversations as prompts."""

from __future__ import annotations

import json

from baton.protocol import MediaItem
from baton_gateway.generation.chat_prompt import chat_prompt


def test_images_stand_beside_the_messages_in_their_order() -> None:
    def image(url: str) -> dict[str, object]:
        return {"type": "image_url", "image_url": {"url": url}}

    messages = [
        {"role": "user", "content": [image("data:a"), {"type": "text", "text": "?"}]},
        {"role": "assistant", "content": "!"},
        {"role": "user", "content": [{"type": "text", "text": "?"}, image("data:b")]},
    ]
    prompt = chat_prompt(messages)
    shown = json.loads(prompt.messages)
    assert shown[0]["content"] == [{"type": "image"}, {"type": "text", "text": "?"}]
    assert shown[1] == messages[1] and shown[2]["content"][1] == {"type": "image"}
    assert prompt.media == (
        MediaItem("image", "data:a", "messages[0].content[0].image_url"),
        MediaItem("image", "data:b", "messages[2].content[1].image_url"),
    )
    assert messages[0]["content"][0] == image("data:a")


def test_a_message_that_is_continued_has_no_prompt_behind_it() -> None:
    prompt = chat_prompt([{"role": "user", "content": "a"}], continue_final_message=True)
    assert prompt.continue_final_message and not prompt.add_generation_prompt
    assert (prompt.tools, prompt.kwargs, prompt.media) == (b"", b"", ())


def test_audio_stands_among_texts_and_images_in_order() -> None:
    content = [
        {"type": "input_audio", "input_audio": {"url": "data:a"}},
        {"type": "text", "text": "?"},
        {"type": "image_url", "image_url": {"url": "data:b"}},
        {"type": "audio_url", "audio_url": {"url": "file_id:file-1"}},
    ]
    prompt = chat_prompt([{"role": "user", "content": content}])
    [shown] = json.loads(prompt.messages)
    assert [part["type"] for part in shown["content"]] == ["audio", "text", "image", "audio"]
    assert prompt.media == (
        MediaItem("audio", "data:a", "messages[0].content[0].input_audio"),
        MediaItem("image", "data:b", "messages[0].content[2].image_url"),
        MediaItem("audio", "file_id:file-1", "messages[0].content[3]"),
    )
