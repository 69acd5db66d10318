"""Renders chat templates: a conversation to the prompt text.

Renders as `apply_chat_template` of transformers, in Jinja's immutable sandbox, and marks the places
where client text imitates special tokens (see `special_tokens.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Any, Protocol

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from baton.errors import InvalidRequest, ModelError
from baton.protocol import EncodeChat
from baton_tokenizer.vocabulary.special_tokens import SpecialTokens, nonce

MAX_RENDERED = 64 * 1024 * 1024
"""Maximum output characters; a template that exceeds it is stopped."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning; templates read the first, gpt-oss the second."""
_OWN = frozenset(("messages", "tools", "add_generation_prompt", "continue_final_message"))
_PROBE = "baton-probe"

Message = dict[str, Any]
Guard = Callable[[str], str]


@dataclass(frozen=True)
class Rendered:
    """A prompt as text."""

    text: str
    marks: frozenset[int] = frozenset()
    """Positions in the text of special tokens that the client wrote at least partly."""


class _Generation(Extension):
    """`{% generation %}` marks assistant text for training; here its body is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters |= {"tojson": _tojson, "fromjson": _fromjson}
    environment.globals |= {"raise_exception": _raise, "strftime_now": _strftime_now}
    return environment


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Compact JSON as in training data; Jinja's own filter would escape it for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _fromjson(text: str) -> object:
    """The value of a JSON text; other text is returned unchanged."""
    try:
        return json.loads(text)
    except ValueError:
        return text


class CompiledTemplate:
    """A compiled chat template and the content shapes it accepts."""

    def __init__(self, text: str, variables: Mapping[str, str]) -> None:
        """Raises `ModelError` when the template is not valid Jinja."""
        try:
            self._template = _environment().from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(
                f"The chat template is not valid (line {error.lineno}: {error.message}). Set "
                "BATON_TOKENIZER_CHAT_TEMPLATE to a corrected file."
            ) from error
        except Exception as error:  # Jinja compiles it to Python, which may refuse it in turn.
            raise ModelError(
                f"The chat template cannot be compiled: {error}. Set "
                "BATON_TOKENIZER_CHAT_TEMPLATE to a corrected file."
            ) from error
        self._variables = dict(variables)
        self.reads_parts = self._reads([{"type": "text", "text": _PROBE}])
        """The template loops over the parts of a message."""
        self.reads_strings = self._reads(_PROBE) or not self.reads_parts
        """The template accepts content as one string."""
        self.reads_none = self._renders_none()
        """The template accepts an assistant message with tool calls and without content."""

    def _reads(self, content: object) -> bool:
        try:
            out = self.render({"messages": [{"role": "user", "content": content}]})
        except InvalidRequest:
            return False
        return _PROBE in out and f"'text': '{_PROBE}'" not in out and f'"{_PROBE}"' not in out

    def _renders_none(self) -> bool:
        call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": {}}}
        turn = [
            {"role": "user", "content": _PROBE},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
        try:
            self.render({"messages": turn})
        except InvalidRequest:
            return False
        return True

    def render(self, variables: Mapping[str, Any]) -> str:
        """Raises `InvalidRequest` with the template's own message if it refuses."""
        defaults = {"tools": None, "documents": None, "add_generation_prompt": False}
        out: list[str] = []
        size = 0
        try:
            for chunk in self._template.generate(self._variables | defaults | dict(variables)):
                out.append(chunk)
                size += len(chunk)
                if size > MAX_RENDERED:
                    raise InvalidRequest("The rendered conversation is too long.", param="messages")
        except InvalidRequest:
            raise
        except Exception as error:  # A template is untrusted code, so any exception is possible.
            raise InvalidRequest(
                f"The chat template refuses this conversation: {error}", param="messages"
            ) from error
        return "".join(out)

    def close(self) -> None:
        """Nothing to close."""


class Template(Protocol):
    """A template that renders in this process or in a child process; see `CompiledTemplate`."""

    reads_parts: bool
    reads_strings: bool
    reads_none: bool

    def render(self, variables: Mapping[str, Any]) -> str:
        """Raises `InvalidRequest`."""

    def close(self) -> None:
        """Close the renderer."""


class ChatTemplates:
    """The chat templates of a vocabulary. Life cycle: any number of `render`, then `close`."""

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        literal: SpecialTokens,
        placeholders: Mapping[str, str] | None = None,
        compiler: Callable[[str, Mapping[str, str]], Template] = CompiledTemplate,
    ) -> None:
        """
        Args:
            placeholders: text for an item of each modality, for templates that do not know the
                modality; empty for a text model.
            compiler: compiles a template with these variables.
        """
        self._placeholders = placeholders or {}
        self._templates = {name: compiler(text, special_tokens) for name, text in templates.items()}
        self._reserved = _OWN | special_tokens.keys()
        self._literal = literal

    def render(self, request: EncodeChat, longest: int) -> Rendered:
        """Render a conversation; texts are truncated to `longest` characters.

        Raises `InvalidRequest` if there is no template, the JSON is invalid, or the template
        refuses.
        """
        messages, tools, extra = self._parse(request)
        template = self._choose(bool(tools))
        mark, tag = nonce(), nonce()
        places = {modality: nonce() for modality in self._placeholders}
        try:
            messages = [
                _prepare(m, f"messages[{i}]", template, places) for i, m in enumerate(messages)
            ]
            guard = _guard(self._literal, mark, longest)
            variables = _walk({**extra, "messages": messages, "tools": tools or None}, guard)
            if request.continue_final_message:
                _tag_end(variables["messages"], tag)
            variables["add_generation_prompt"] = request.add_generation_prompt
            text = template.render(variables)
        except RecursionError as error:
            raise InvalidRequest("The request is nested too deeply.", param="messages") from error
        except InvalidRequest as error:
            message = error.message.replace(mark, "").replace(f"{tag} ", "").replace(tag, "")
            raise InvalidRequest(message[:1000], code=error.code, param=error.param) from error
        if request.continue_final_message:
            text = _cut_at(text, tag)
        for modality, place in places.items():
            text = text.replace(place, self._placeholders[modality])
        return _collect(text, mark)

    def close(self) -> None:
        """Close all renderers."""
        for template in self._templates.values():
            template.close()

    def _choose(self, with_tools: bool) -> Template:
        if not self._templates:
            raise InvalidRequest(
                "This model has no chat template; use /v1/completions or set "
                "BATON_TOKENIZER_CHAT_TEMPLATE.",
                param="messages",
            )
        if with_tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        return self._templates.get("default") or next(iter(self._templates.values()))

    def _parse(self, request: EncodeChat) -> tuple[list[Message], list[Any], dict[str, Any]]:
        if request.add_generation_prompt and request.continue_final_message:
            raise InvalidRequest(
                "add_generation_prompt and continue_final_message exclude "
                "each other: leave one of them out.",
                param="continue_final_message",
            )
        messages = _json(request.messages, list[dict[str, Any]], "messages")
        tools = _json(request.tools or b"[]", list[Any], "tools")
        extra = _json(request.kwargs or b"{}", dict[str, Any], "chat_template_kwargs")
        reserved = sorted(self._reserved & extra.keys())
        if reserved:
            raise InvalidRequest(
                f"chat_template_kwargs may not set {', '.join(reserved)}.",
                param="chat_template_kwargs",
            )
        return messages, tools, extra


def _json(data: bytes, kind: Any, param: str) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{param} is malformed: {error}.", param=param) from error


def _guard(literal: SpecialTokens, mark: str, longest: int) -> Guard:
    """Truncate and guard one text of the client."""

    def guard(text: str) -> str:
        if len(text) > longest and len(text.strip()) > longest:
            text = text[: len(text) - len(text.lstrip()) + longest]
        return literal.guard(text, mark)

    return guard


def _walk(value: Any, guard: Guard) -> Any:
    """Apply `guard` to every string of a JSON value, including property names."""
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, list):
        return [_walk(item, guard) for item in value]
    if isinstance(value, dict):
        return {guard(key): _walk(item, guard) for key, item in value.items()}
    return value


def _prepare(
    message: Message, param: str, template: Template, places: Mapping[str, str]
) -> Message:
    """Convert a message to the form that this template accepts; `places` are the media placeholders
    within strings."""
    prepared = dict(message)
    reasoning = next((message[key] for key in _REASONING if message.get(key) is not None), None)
    if reasoning is not None:
        prepared = {"thinking": reasoning, **prepared, "reasoning_content": reasoning}
    if "content" in message:
        prepared["content"] = _shape(message["content"], template, places, f"{param}.content")
    if message.get("tool_calls"):
        calls = message["tool_calls"]
        prepared["tool_calls"] = [
            _parse_arguments(call, f"{param}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    return prepared


def _shape(content: Any, template: Template, places: Mapping[str, str], param: str) -> Any:
    """Join text parts for templates that accept strings, and the reverse."""
    if isinstance(content, list):
        texts = [_text(part, places, f"{param}[{i}]") for i, part in enumerate(content)]
        return content if template.reads_parts else "\n".join(texts)
    if content is None and not template.reads_none:
        content = ""
    if isinstance(content, str) and not template.reads_strings:
        return [{"type": "text", "text": content}]
    return content


def _text(part: Any, places: Mapping[str, str], param: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in places:
        return places[kind]
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise InvalidRequest(
        "Only text parts can be rendered for this model.", code="unsupported_value", param=param
    )


def _parse_arguments(call: Any, param: str) -> Any:
    """Parse the JSON arguments of a tool call, since templates expect an object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    text = function["arguments"].strip() or "{}"
    arguments = _json(text.encode(), Any, f"{param}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _tag_end(messages: list[Message], tag: str) -> None:
    """Append a tag to the final message's text. Its space shows whether the template strips
    text."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, str):
        messages[-1]["content"] = f"{content}{tag} "
        return
    for part in reversed(content if isinstance(content, list) else []):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            part["text"] = f"{part['text']}{tag} "
            return
    raise InvalidRequest(
        "continue_final_message needs a final message with text.", param="continue_final_message"
    )


def _cut_at(text: str, tag: str) -> str:
    """The prompt up to the end of the final message."""
    place = text.rfind(tag)
    if place < 0:
        raise InvalidRequest(
            "The chat template drops the final message, so it cannot be continued.",
            param="continue_final_message",
        )
    before = text[:place]
    return before if text.startswith(f"{tag} ", place) else before.rstrip()


def _collect(text: str, mark: str) -> Rendered:
    """Remove the marks from a rendered prompt and return their positions."""
    # A template may write ASCII JSON, in which the mark is escaped.
    text = text.replace(json.dumps(mark)[1:-1], mark)
    if mark not in text:
        return Rendered(text)
    parts = text.split(mark)
    return Rendered("".join(parts), frozenset(accumulate(map(len, parts[:-1]))))
