"""A model's formats of tool calls and thinking, and the parser of one answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from baton.errors import InvalidRequest
from baton.output_parsing import (
    CallEnd,
    CallStart,
    Content,
    OutputParser,
    Piece,
    Reasoning,
    Start,
    auto_grammar,
    reasoning_format,
    tool_format,
    tool_grammar,
)
from baton.output_parsing.grammars.tool_grammar import BLOCKS
from baton.output_parsing.reasoning_format import ReasoningReader
from baton.output_parsing.response_template import declared_reasoning, declared_tools
from baton.output_parsing.selection import NONE
from baton.output_parsing.tool_format import ToolReader
from baton.protocol import Grammar, TokenizerInfo
from baton.structured_output.json_schema import SchemaError
from baton_gateway.http.errors import invalid
from baton_gateway.pieces import Pieces

_DECLARED = "response_template"
_ANY_MODEL = "json"
"""Format of demanded calls for models without one: the grammar enforces it."""
_DEMANDED = "required"


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """Formats by which the answers of a chat request are parsed."""

    tools: tuple[Mapping[str, Any], ...] = ()
    """OpenAI's tool objects."""
    choice: str = "none"
    """"none", "auto", "required" or the name of a function."""
    parallel: bool = True
    """Whether an answer may call several times."""
    constrained: bool = False
    """A grammar of the client constrains the output, after the thinking if that has tags."""
    thinking_budget: int | None = None
    """Maximum tokens of thinking; None for any number."""
    budget_is_target: bool = False
    """A thinking budget is ignored, instead of refused, if thinking has no tags."""
    starts: tuple[Start, ...] = ()
    """Per prompt, the part in which its output begins; empty if the prompts are not rendered
    yet."""

    @property
    def demanded(self) -> bool:
        """Whether an answer must call."""
        return self.choice not in ("none", "auto")

    @property
    def strict(self) -> bool:
        """Whether the calls of some function must be valid."""
        return any(tool["function"].get("strict") for tool in self.tools)


@dataclass(frozen=True, slots=True)
class OutputFormats:
    """The formats of one model; None where it has none."""

    tools: ToolReader | None = None
    reasoning: ReasoningReader | None = None

    @property
    def thinking_tags(self) -> tuple[str, str] | None:
        """The tags of the model's thinking; None if it is not delimited by one tag each."""
        openers = getattr(self.reasoning, "openers", ())
        closers = getattr(self.reasoning, "closers", ())
        return (openers[0], closers[-1]) if openers and closers else None

    def start(self, tail: str, options: ToolOptions) -> Start:
        """The part in which an output begins after a prompt that ends with `tail`."""
        if self.reasoning is None or (options.constrained and self.thinking_tags is None):
            return "content"
        return self.reasoning.start(tail)

    def parser(self, options: ToolOptions, start: Start, seed: str) -> AnswerParser | None:
        """Return the parser of one answer; None if its whole text is content.

        Args:
            seed: the ids of calls are derived from it.
        """
        tools = self.caller(options) if options.choice != "none" else None
        if tools is None and self.reasoning is None:
            return None
        return AnswerParser(
            OutputParser(
                tools,
                self.reasoning,
                start=start,
                tools=options.tools,
                tool_choice=options.choice,
                call_id_seed=seed,
            ),
            thinking=start == "thinking",
            demanded=options.demanded,
            named_function=options.choice not in ("none", "auto", _DEMANDED),
            parallel=options.parallel,
        )

    def caller(self, options: ToolOptions) -> ToolReader:
        """Return the format of calls. Raises `InvalidRequest` for a model without one, if calls are
        not enforced."""
        if self.tools is not None:
            return self.tools
        if options.demanded:
            return tool_format(_ANY_MODEL)
        raise invalid(
            "tool_choice",
            "It is not known how this model writes tool calls, so it cannot choose to make one. "
            "Send tool_choice 'required' or 'none', or start the server with --tool-call-parser.",
            "unsupported_value",
        )

    def grammar(self, options: ToolOptions, start: Start) -> Grammar:
        """Return the grammar of an answer with demanded calls, after thinking without a budget.

        Raises `InvalidRequest`.
        """
        try:
            return tool_grammar(
                self.caller(options),
                options.tools,
                options.choice,
                parallel=options.parallel,
                reasoning_format=None if options.thinking_budget is not None else self.reasoning,
                start=start,
            )
        except SchemaError as error:
            raise _invalid_tools(error) from error

    @property
    def calls_have_grammar(self) -> bool:
        """Whether there is a grammar of the model's own format of calls."""
        return self.tools is not None and self.tools.name in BLOCKS

    def auto_grammar(self, options: ToolOptions, otherwise: str = "") -> Grammar:
        """Return the grammar of an answer that may call, without its thinking. `otherwise` is the
        expression of an answer without calls; "" for any text. Raises `InvalidRequest`."""
        try:
            return auto_grammar(
                self.caller(options),
                options.tools,
                parallel=options.parallel,
                otherwise=otherwise,
            )
        except SchemaError as error:
            raise _invalid_tools(error) from error


def _invalid_tools(error: SchemaError) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid 'tools': {error}.", code="invalid_function_parameters", param="tools"
    )


class AnswerParser:
    """Parses one answer incrementally. Its state is a function of the text that was fed."""

    def __init__(
        self,
        parser: OutputParser,
        *,
        thinking: bool,
        demanded: bool,
        named_function: bool,
        parallel: bool = True,
    ) -> None:
        """
        Args:
            demanded: the client demanded calls. What else there is, the beginning of a call that
                was cut off, is no content.
            named_function: the client demanded one function by name.
            parallel: an answer may call several times; else all calls but the first are left out.
        """
        self._parser, self._named_function, self._parallel = parser, named_function, parallel
        self._demanded = demanded
        self.thinking = thinking
        """Whether the text read so far ends within the model's thinking."""
        self._calls = 0

    def feed(self, text: str, *, last: bool = False) -> Pieces:
        """Return the pieces that later text cannot change; after the `last` text all of them."""
        pieces = self._parser.feed(text)
        if last:
            pieces += self._parser.finish()
        if not self._parallel:
            pieces = [piece for piece in pieces if not _is_further_call(piece)]
        for piece in pieces:
            if isinstance(piece, Reasoning):
                self.thinking = True
            elif isinstance(piece, Content | CallStart):
                self.thinking = False
            elif isinstance(piece, CallEnd):
                self._calls += 1
        return tuple(p for p in pieces if not (self._demanded and isinstance(p, Content)))

    def reason(self, reason: str | None) -> str | None:
        """Return the finish reason of the API: "tool_calls" for an answer that ended with calls
        that the model chose."""
        return (
            "tool_calls"
            if reason == "stop" and self._calls and not self._named_function
            else reason
        )


def _is_further_call(piece: Piece) -> bool:
    """Whether a piece belongs to a call after the first."""
    return not isinstance(piece, Content | Reasoning) and piece.index > 0


def output_formats(info: TokenizerInfo) -> OutputFormats:
    """Return the formats that a tokenizer names in its `Hello`."""
    return _formats(info.tool_call_parser, info.reasoning_parser, info.response_template)


@lru_cache(maxsize=64)
def _formats(tools: str, reasoning: str, declared: bytes) -> OutputFormats:
    template = msgspec.json.decode(declared) if declared else {}
    return OutputFormats(
        None if tools == NONE else _tools(tools, template),
        None if reasoning == NONE else _reasoning(reasoning, template),
    )


def _tools(name: str, template: Mapping[str, Any]) -> ToolReader | None:
    return declared_tools(template) if name == _DECLARED else tool_format(name)


def _reasoning(name: str, template: Mapping[str, Any]) -> ReasoningReader | None:
    return declared_reasoning(template) if name == _DECLARED else reasoning_format(name)
