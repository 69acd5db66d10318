"""Incremental parser of model output: reasoning, content and tool calls.

Usage in a server:

    chosen = select(tool_call_parser, reasoning_parser, chat_template=..., response_template=...)
    log(chosen.reason)                                      # once for each model

    reasoning = chosen.reasoning_format                     # for each answer
    parser = OutputParser(
        chosen.tool_format,
        reasoning,
        start=reasoning.start(prompt_text) if reasoning else "content",
        tools=request_tools,
        tool_choice=request_tool_choice,
        call_id_seed=request_id,
    )
    for text in answer:                                     # special tokens must be in the text
        for piece in parser.feed(text):
            send(delta(piece))
    pieces = parser.finish()

`Message.add(pieces)` assembles an answer that is not streamed; the result does not depend on where
the text was split. If the last piece is a `ParseError`, the call that it names is incomplete, and
the answer ends. The state is a function of the text that was fed: to copy a parser, feed the text
to another one.

If a request demands a call (`tool_choice` "required" or a function's name), `tool_grammar` returns
the grammar that enforces it, in the format's own syntax and with arguments that match the tool's
schema. It is validated and enforced like any other `Grammar`:

    tool_grammar(chosen.tool_format, tools, choice, parallel=..., reasoning_format=..., start=...)

`auto_grammar` returns that of an answer that may call, and whose calls are valid.
"""

from baton.output_parsing.grammars.auto_grammar import auto_grammar
from baton.output_parsing.grammars.tool_grammar import tool_grammar
from baton.output_parsing.message import Message, ToolCall, delta
from baton.output_parsing.parser import OutputParser
from baton.output_parsing.pieces import (
    Arguments,
    CallEnd,
    CallStart,
    Content,
    ParseError,
    Piece,
    Reasoning,
)
from baton.output_parsing.reasoning_format import Start
from baton.output_parsing.selection import Selection, reasoning_format, select, tool_format

__all__ = [
    "Arguments",
    "CallEnd",
    "CallStart",
    "Content",
    "Message",
    "OutputParser",
    "ParseError",
    "Piece",
    "Reasoning",
    "Selection",
    "Start",
    "ToolCall",
    "auto_grammar",
    "delta",
    "reasoning_format",
    "select",
    "tool_format",
    "tool_grammar",
]
