from __future__ import annotations

from tests.support.model_outputs import calls_of, parse

V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>"
KIMI = "<|tool_calls_section_begin|><|tool_call_begin|>{}<|tool_call_end|>"


def kimi(inside: str) -> str:
    return KIMI.replace("{}", inside)


def test_fences_and_braces_in_strings_are_data() -> None:
    text = V3.replace("{}", '{\n  "a": "```json\\n}"\n}')
    assert calls_of(parse(f"<｜tool▁calls▁begin｜>{text}", "deepseek_v3")) == [
        ("f", {"a": "```json\n}"})
    ]


def test_closers_and_the_section_may_be_missing() -> None:
    assert calls_of(parse(V3, "deepseek_v3")) == [("f", {})]
    cut = V3.removesuffix("\n```<｜tool▁call▁end｜>")
    assert calls_of(parse(f"<｜tool▁calls▁begin｜>{cut}", "deepseek_v3")) == [("f", {})]


def test_ids_of_kimi() -> None:
    for name, call_id in (("functions.a-b:12", "functions.a-b:12"), ("f:3", "f:3")):
        message = parse(kimi(f" {name} <|tool_call_argument_begin|> {{}} "), "kimi_k2")
        assert message.tool_calls[0].id == call_id
        assert message.tool_calls[0].name == name.removeprefix("functions.").partition(":")[0]


def test_missing_and_quoted_arguments() -> None:
    for arguments in ("", " ", "null", '"{}"', '""'):
        text = kimi(f"functions.f:0<|tool_call_argument_begin|>{arguments}")
        assert calls_of(parse(text, "kimi_k2")) == [("f", {})]
    for arguments in ("[]", "3", '"x"'):
        text = kimi(f"functions.f:0<|tool_call_argument_begin|>{arguments}")
        assert parse(text, "kimi_k2").content == text


def test_an_opener_without_a_call_is_text() -> None:
    for text, name in (
        ("<｜tool▁calls▁begin｜>hello", "deepseek_v31"),
        ("<｜tool▁call▁begin｜>hello there", "deepseek_v31"),
        ("the ✿FUNCTION✿ sign", "qwen_vl"),
    ):
        assert parse(text, name).content == text


def test_a_section_that_ends_inside_a_call() -> None:
    text = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"
    assert parse(text, "deepseek_v31").content == text
    error = parse(text + '{"a": "b', "deepseek_v31").error
    assert error is not None and error.type == "incomplete_tool_call"


def test_the_final_answer_of_qwen() -> None:
    text = "✿FUNCTION✿: f\n✿ARGS✿: {}\n✿RESULT✿: 3\n✿RETURN✿: It is 3."
    message = parse(text, "qwen_vl")
    assert calls_of(message) == [("f", {})]
    assert message.content is not None and message.content.endswith("It is 3.")
