"""Conversations that ask for a transcript."""

from __future__ import annotations

import json

from baton.protocol import ChatSpeechInfo
from baton_gateway.speech.chat_prompts import speech_chat

HEARD = {"type": "audio"}


def test_a_language_begins_the_answer_and_context_is_the_systems() -> None:
    info = ChatSpeechInfo({"de": "German"}, "language {language}<asr_text>", "<asr_text>")
    free = speech_chat(info, "", "")
    assert json.loads(free.messages) == [{"role": "user", "content": [HEARD]}]
    assert (free.add_generation_prompt, free.continue_final_message) == (True, False)
    told = speech_chat(info, "de", "names")
    system, user, answer = json.loads(told.messages)
    assert system == {"role": "system", "content": "names"} and user["content"] == [HEARD]
    assert answer == {"role": "assistant", "content": "language German<asr_text>"}
    assert (told.add_generation_prompt, told.continue_final_message) == (False, True)


def test_a_request_stands_behind_the_recording() -> None:
    info = ChatSpeechInfo(request="Transcribe.")
    for given, said in (("", "Transcribe."), ("Write.", "Write.")):
        [user] = json.loads(speech_chat(info, "", given).messages)
        assert user["content"] == [HEARD, {"type": "text", "text": said}]
