"""Renders chat templates in a child process: a template is untrusted code, and may never end.

    tokenizer -- variables as JSON --> child: renders, with limited memory
              <-- text or refusal ---  killed when it takes too long

The child is reused: a request costs a tenth of a millisecond, a start a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from baton.errors import InvalidRequest, ModelError
from baton.process.child_pool import ChildDied, ChildPool, ChildTimeout
from baton.process.sandbox import Handler, limit_memory, main
from baton_tokenizer.chat_template import CompiledTemplate

SECONDS = 5.0
"""Time limit of one conversation, within which the waiting main loop still counts as alive."""
MEMORY = 1024 * 1024 * 1024
"""Additional bytes that a child may allocate."""
_MODULE = "baton_tokenizer.template_sandbox"
_ADVICE = "Set BATON_TOKENIZER_CHAT_TEMPLATE to a better one."


class _Source(msgspec.Struct):
    """A template and the tokenizer variables that it may read."""

    text: str
    variables: dict[str, str]


class _Facts(msgspec.Struct):
    """Properties of a template, as in `CompiledTemplate`; or why it is invalid."""

    reads_parts: bool = False
    reads_strings: bool = False
    reads_none: bool = False
    error: str = ""


class _Answer(msgspec.Struct):
    text: str = ""
    error: str | None = None


class SandboxedTemplate:
    """A chat template that is compiled and rendered in a child process. Same interface as
    `CompiledTemplate`. Life cycle: any number of `render`, then `close`."""

    def __init__(self, text: str, variables: Mapping[str, str]) -> None:
        """Raises `ModelError` if the template is invalid, or exceeds the limits for a short
        message."""
        source = msgspec.json.encode(_Source(text, dict(variables)))
        self._children = ChildPool(_MODULE, source, 1, "Chat")
        try:
            facts = msgspec.json.decode(
                self._children.exchange(b"", SECONDS, wall=True), type=_Facts
            )
        except ChildDied as error:
            self.close()
            raise ModelError(f"{_excess(error)} even for a short message. {_ADVICE}") from error
        if facts.error:
            self.close()
            raise ModelError(facts.error)
        self.reads_parts, self.reads_strings = facts.reads_parts, facts.reads_strings
        self.reads_none = facts.reads_none

    def render(self, variables: Mapping[str, Any]) -> str:
        """Raises `InvalidRequest` with the template's own message if it refuses, or if it exceeds a
        limit."""
        try:
            data = self._children.exchange(msgspec.json.encode(variables), SECONDS, wall=True)
        except ChildDied as error:
            raise InvalidRequest(
                f"{_excess(error)} for this conversation. Shorten it.", param="messages"
            ) from error
        answer = msgspec.json.decode(data, type=_Answer)
        if answer.error is not None:
            raise InvalidRequest(answer.error, param="messages")
        return answer.text

    def close(self) -> None:
        """Stop the child."""
        self._children.close()


def _excess(error: ChildDied) -> str:
    resource = "time" if isinstance(error, ChildTimeout) else "memory"
    return f"The chat template needs too much {resource}"


def build(setup: bytes) -> Handler:
    """Return the handler of a child: an empty request asks for the template's properties, another
    one renders."""
    source = msgspec.json.decode(setup, type=_Source)
    limit_memory(MEMORY)
    compiled: CompiledTemplate | None = None

    def handle(request: bytes) -> bytes:
        nonlocal compiled
        if request and compiled is not None:
            return msgspec.json.encode(_rendered(compiled, request))
        try:
            compiled = compiled or CompiledTemplate(source.text, source.variables)
        except ModelError as error:
            return msgspec.json.encode(_Facts(error=error.message))
        if request:
            return handle(request)
        facts = _Facts(compiled.reads_parts, compiled.reads_strings, compiled.reads_none)
        return msgspec.json.encode(facts)

    return handle


def _rendered(template: CompiledTemplate, request: bytes) -> _Answer:
    try:
        return _Answer(template.render(msgspec.json.decode(request)))
    except InvalidRequest as error:
        return _Answer(error=error.message)


if __name__ == "__main__":
    main(build)
