from __future__ import annotations

from baton.output_parsing.message import Message
from baton.output_parsing.reasoning_format import Start
from tests.support.model_outputs import calls_of, parse, reasoning_format

CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "<|end|>"}<|call|>'


def read(text: str, tool: str | None = "openai", start: Start = "content") -> Message:
    message = parse(text, tool, "gpt_oss", start=start)
    assert parse(text, tool, "gpt_oss", start=start, cuts=range(len(text))) == message
    return message


def test_recipients() -> None:
    for head in (
        "<|channel|>commentary to=functions.f<|message|>",
        "<|channel|>commentary to=functions.f json<|message|>",
        "<|channel|>analysis to=functions.f <|constrain|>json<|message|>",
        "<|start|>assistant to=functions.f<|channel|>commentary<|message|>",
    ):
        for end in ("<|call|>", ""):
            message = read(head + '{"a": 1}' + end)
            assert calls_of(message) == [("f", {"a": 1})], head
            assert message.reasoning is None and message.content is None


def test_delimiters_in_arguments_are_data() -> None:
    assert calls_of(read(CALL)) == [("f", {"a": "<|end|>"})]


def test_channels() -> None:
    message = read(
        "<|channel|>commentary<|message|>First.<|end|><|start|>assistant"
        "<|channel|>final<|message|>Last.<|return|>"
    )
    assert message.content == "First.Last." and message.reasoning is None


def test_text_without_a_channel_is_content() -> None:
    for text in (" yes ", "a <|x|> b", "<|channel|>no message", "to=functions.f {}"):
        assert read(text).content == text


def test_what_is_no_call_is_text() -> None:
    for head in ("commentary to=functions.f", " commentary to=functions.f json "):
        text = f"<|channel|>{head}<|message|>not JSON<|call|>"
        assert read(text).content == text


def test_a_call_that_is_cut_off_is_an_error() -> None:
    error = read('<|channel|>commentary to=functions.f<|message|>{"a": ').error
    assert error is not None and error.type == "incomplete_tool_call"


def test_without_a_tool_format_the_text_of_a_call_is_content() -> None:
    message = read(CALL.replace("<|end|>", ""), tool=None)
    assert message.content == '{"a": ""}' and not message.tool_calls


def test_a_tool_that_is_no_function_is_called_only_if_the_request_has_it() -> None:
    text = "<|channel|>commentary to={}<|message|>{{}}<|call|>"
    assert calls_of(read(text.format("now"))) == [("now", {})]
    assert read(text.format("python")).content == "{}"


def test_another_tool_format_reads_the_final_channel() -> None:
    text = '<|channel|>final<|message|><tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert calls_of(read(text, tool="hermes")) == [("f", {})]


def test_where_the_text_begins() -> None:
    row = reasoning_format("gpt-oss")
    assert row.default_start(True) == row.start("<|start|>assistant") == "content"
    assert row.start("<|start|>assistant<|channel|>analysis<|message|>") == "thinking"
    message = read("so<|end|><|start|>assistant<|channel|>final<|message|>yes", None, "thinking")
    assert (message.reasoning, message.content) == ("so", "yes")
