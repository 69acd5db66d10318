"""Calls of Mistral: `[TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...}` from tokenizer v11 on, before that an
array of objects."""

from __future__ import annotations

import re
from dataclasses import dataclass

from baton.output_parsing.bodies.header import header, name_header
from baton.output_parsing.bodies.json_calls import JsonCalls, copy_arguments
from baton.output_parsing.calls import Calls
from baton.output_parsing.source import Reader, Source, delimiters

ID = "[a-zA-Z0-9]{9}"
_BEHIND_NAME = delimiters("[ARGS]", "[CALL_ID]", "{")
_BEHIND_ID = delimiters("[ARGS]", "{")
_ID_SHAPE = re.compile(r"\w{0,64}")
_ARRAY = JsonCalls(id_pattern=ID)


@dataclass(frozen=True, slots=True)
class MistralCalls:
    """Both dialects: an array begins with a bracket, a name never does."""

    def read(self, source: Source, calls: Calls, opener: str) -> Reader[None]:
        """Read one call, or an array of them."""
        if (yield from source.space()) in ("[", "{"):
            yield from _ARRAY.read(source, calls, opener)
            return
        name, delimiter = yield from name_header(source, _BEHIND_NAME)
        call_id = ""
        if delimiter == "[CALL_ID]":
            call_id, delimiter = yield from header(source, _BEHIND_ID, _ID_SHAPE)
        if delimiter == "{":
            source.position -= 1
        fits = re.fullmatch(ID, call_id)
        yield from copy_arguments(source, calls, name, call_id if fits else None, ())
