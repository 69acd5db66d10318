"""Whisper prompts (Radford et al. 2022, arXiv:2212.04356, section 2.3): special tokens for the
language, the task and the form of the output.

    [<|startofprev|> text before] <|startoftranscript|> [<|en|> <|transcribe|>] [<|notimestamps|>]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from baton.protocol import SpeechInfo

Task = Literal["transcribe", "translate"]
PROCESSOR = "transcript"
"""Name of the logits processor that enforces an output's form."""


def speech_prompt(
    info: SpeechInfo,
    task: Task,
    language: str,
    *,
    timestamps: bool,
    previous: Sequence[int] = (),
    max_previous: int = 0,
) -> tuple[int, ...]:
    """Return the ids of a prompt.

    Args:
        language: code of one of `info.languages`; ignored if there are none.
        previous: ids of the text before the recording.
        max_previous: number of its last ids that are used.
    """
    ids: list[int] = []
    if previous and max_previous > 0:
        ids += [info.previous, *previous[-max_previous:]]
    ids.append(info.start)
    if info.languages:
        task_id = info.transcribe if task == "transcribe" else info.translate
        ids += [info.languages[language], task_id]
    if not timestamps:
        ids.append(info.no_timestamps)
    return tuple(ids)


def output_rules(info: SpeechInfo, *, timestamps: bool) -> dict[str, str]:
    """Return the logits processor of an output, as in `Sampling.processors`."""
    rules = {"suppressed": info.suppressed, "suppressed_first": info.suppressed_first}
    times = {
        "first_timestamp": info.no_timestamps + 1,
        "end": info.end,
        "max_first_timestamp": info.max_first_timestamp,
    }
    return {PROCESSOR: msgspec.json.encode(rules | times if timestamps else rules).decode()}
