"""Prompts of Whisper's kind (Radford et al. 2022, arXiv:2212.04356, section 2.3): special tokens
that say the language, the task and the form of the output.

    [<|startofprev|> text before] <|startoftranscript|> [<|en|> <|transcribe|>] [<|notimestamps|>]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from baton.protocol import SpeechInfo

Task = Literal["transcribe", "translate"]
PROCESSOR = "transcript"
"""Name of the logits processor that keeps an output's form."""


def speech_prompt(
    info: SpeechInfo,
    task: Task,
    language: str,
    *,
    timestamps: bool,
    before: Sequence[int] = (),
    most_before: int = 0,
) -> tuple[int, ...]:
    """Return the ids of a prompt.

    Args:
        language: code of one of `info.languages`; not read where there are none.
        before: ids of the text before the recording.
        most_before: number of its last ids that are used.
    """
    ids: list[int] = []
    if before and most_before > 0:
        ids += [info.previous, *before[-most_before:]]
    ids.append(info.start)
    if info.languages:
        asked = info.transcribe if task == "transcribe" else info.translate
        ids += [info.languages[language], asked]
    if not timestamps:
        ids.append(info.no_timestamps)
    return tuple(ids)


def output_rules(info: SpeechInfo, *, timestamps: bool) -> dict[str, str]:
    """Return the logits processor of an output, as `Sampling.processors` has it."""
    rules = {"suppressed": info.suppressed, "suppressed_first": info.suppressed_first}
    times = {
        "first_timestamp": info.no_timestamps + 1,
        "end": info.end,
        "max_first_timestamp": info.max_first_timestamp,
    }
    return {PROCESSOR: msgspec.json.encode(rules | times if timestamps else rules).decode()}
