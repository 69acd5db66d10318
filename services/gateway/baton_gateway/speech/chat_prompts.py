"""Transcription prompts of language models with audio input."""

from __future__ import annotations

from typing import Any

import msgspec

from baton.protocol import ChatSpeechInfo
from baton_gateway.generation.request import ChatPrompt


def speech_chat(info: ChatSpeechInfo, language: str, prompt: str) -> ChatPrompt:
    """Return a conversation with one recording.

    Args:
        language: code of one of `info.languages`, whose name the answer begins with; empty if the
            model detects it.
        prompt: the client's text: context, or the instruction itself if the model has one.
    """
    text = [{"type": "text", "text": prompt or info.request}] if info.request else []
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "audio"}, *text]}]
    if prompt and not info.request:
        messages.insert(0, {"role": "system", "content": prompt})
    if language:
        opening = info.opening.replace("{language}", info.languages[language])
        messages.append({"role": "assistant", "content": opening})
    return ChatPrompt(
        messages=msgspec.json.encode(messages),
        add_generation_prompt=not language,
        continue_final_message=bool(language),
    )
