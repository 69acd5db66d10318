from __future__ import annotations

from tests.support.model_outputs import calls_of, function, parse

F = [function("f", a="string", b="integer")]


def qwen(inside: str) -> str:
    return f"<tool_call>\n{inside}\n</tool_call>"


def test_an_attribute_beats_the_schema() -> None:
    text = (
        '<｜DSML｜function_calls><｜DSML｜invoke name="f">'
        '<｜DSML｜parameter name="a" string="false">{}</｜DSML｜parameter>'
        '<｜DSML｜parameter name="b" string="true">1</｜DSML｜parameter>'
        "</｜DSML｜invoke></｜DSML｜function_calls>"
    )
    for value, expected in (("12", 12), ('"x"', "x"), ("[1]", [1]), ("word", "word")):
        message = parse(text.replace("{}", value), "deepseek_v32", tools=F)
        assert calls_of(message) == [("f", {"a": expected, "b": "1"})]


def test_several_functions_of_a_block_and_several_blocks() -> None:
    call = '<invoke name="f"><parameter name="b">1</parameter></invoke>'
    block = f"<minimax:tool_call>\n{call}\n{call}\n</minimax:tool_call>"
    message = parse(f"{block}\n{block}", "minimax_m2", tools=F)
    assert calls_of(message) == [("f", {"b": 1})] * 4 and message.content is None


def test_closers_that_are_missing() -> None:
    call = "<function=f><parameter=b>1</parameter></function>"
    assert calls_of(parse(f"<tool_call>{call}", "qwen3_xml", tools=F)) == [("f", {"b": 1})]
    assert calls_of(parse(f"{call}</tool_call>", "qwen3_xml", tools=F)) == [("f", {"b": 1})]
    open_function = qwen("<function=f><parameter=b>1</parameter>")
    assert calls_of(parse(open_function, "qwen3_xml", tools=F)) == [("f", {"b": 1})]


def test_a_text_that_ends_before_the_function_does() -> None:
    for text in (
        "<tool_call><function=f><parameter=b>1</parameter>\n",
        "<tool_call><function=f><parameter=a>x",
        "<tool_call><function=f><parameter=a>x</param",
    ):
        message = parse(text, "qwen3_xml", tools=F)
        assert message.error is not None and message.error.type == "incomplete_tool_call"


def test_what_is_no_function_is_text() -> None:
    for text in (
        qwen("hello"),
        qwen("<function=two words></function>"),
        qwen("<function=f>hello"),
        "Write <function=f> to begin.",
    ):
        assert parse(text, "qwen3_xml").content == text


def test_text_between_arguments_is_an_error() -> None:
    text = qwen("<function=f><parameter=b>1</parameter>and</function>")
    error = parse(text, "qwen3_xml").error
    assert error is not None and error.type == "invalid_tool_call"


def test_a_function_without_arguments() -> None:
    assert calls_of(parse(qwen("<function=f>\n</function>"), "qwen3_xml")) == [("f", {})]


def test_an_unknown_key_is_read_without_a_schema() -> None:
    text = qwen("<function=f><parameter=zzz>1</parameter></function>")
    assert calls_of(parse(text, "qwen3_xml", tools=F)) == [("f", {"zzz": 1})]
