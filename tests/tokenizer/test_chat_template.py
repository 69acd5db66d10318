"""Chat templates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton.errors import InvalidRequest, ModelError
from baton.protocol import EncodeChat
from baton_tokenizer import chat_template as module
from baton_tokenizer.chat_template import ChatTemplates, CompiledTemplate, Rendered
from baton_tokenizer.vocabulary.special_tokens import SpecialTokens
from tests.fakes.vocabularies import CHATML, SPECIALS, byte_spec

LITERAL = SpecialTokens(byte_spec(), SPECIALS)
USER = {"role": "user", "content": "hi"}
PARTS = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"


def render(
    template: str | dict[str, str],
    *messages: dict[str, Any],
    tools: list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    longest: int = 1_000_000,
    **flags: bool,
) -> Rendered:
    templates = {"default": template} if isinstance(template, str) else template
    chat = ChatTemplates(templates, {"bos_token": "<s>", "eos_token": "</s>"}, LITERAL)
    flags = {"add_generation_prompt": False} | flags
    request = EncodeChat(
        1,
        json.dumps(messages or [USER]).encode(),
        tools=json.dumps(tools).encode() if tools else b"",
        kwargs=json.dumps(kwargs).encode() if kwargs else b"",
        **flags,
    )
    return chat.render(request, longest)


def test_a_conversation() -> None:
    out = render(CHATML, USER, add_generation_prompt=True)
    assert out == Rendered("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


def test_the_helpers_that_templates_expect() -> None:
    template = (
        "{{ bos_token }}{{ {'a': '<é>'} | tojson }}{{ [1] | tojson(indent=1) }}"
        "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{% generation %}G{{ messages[0].content }}{% endgeneration %}"
        "{{ strftime_now('%%') }}{{ tools is none }}{{ documents is none }}"
    )
    assert render(template).text == '<s>{"a": "<é>"}[\n 1\n]01Ghi%TrueTrue'


def test_blocks_are_trimmed_as_in_transformers() -> None:
    assert render("  {% if true %}\nx\n  {% endif %}\ny").text == "x\ny"


def test_the_template_refuses_in_its_own_words() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.status == 400 and caught.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_whatever_goes_wrong_in_a_template_is_a_refusal(template: str) -> None:
    with pytest.raises(InvalidRequest, match="The chat template refuses"):
        render(template)


def test_a_template_that_runs_away_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RENDERED", 1000)
    with pytest.raises(InvalidRequest, match="too long"):
        render("{% for i in range(90000) %}{{ messages[0].content }}{% endfor %}")


def test_invalid_jinja_stops_the_start() -> None:
    """Also what Jinja takes and Python does not."""
    for text in ("{% for %}", "{% break %}", "{{ " + "(" * 5000, "{{ 1" + "0" * 5000 + " }}"):
        with pytest.raises(ModelError, match="BATON_TOKENIZER_CHAT_TEMPLATE"):
            CompiledTemplate(text, {})


def test_no_template() -> None:
    with pytest.raises(InvalidRequest, match="no chat template; use /v1/completions"):
        render({})


def test_named_templates() -> None:
    templates = {"default": "plain", "tool_use": "tools", "rag": "rag"}
    assert render(templates).text == "plain"
    assert render(templates, tools=[{"type": "function"}]).text == "tools"
    assert render({"only": "one"}).text == "one"


def test_text_parts_are_joined_for_templates_of_strings() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "user\na\nb<" in render(CHATML, {"role": "user", "content": parts}).text


def test_strings_are_wrapped_for_templates_of_parts() -> None:
    assert render(PARTS, USER).text == "[hi]"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render(PARTS, {"role": "user", "content": parts}).text == "[a][b]"


def test_a_template_of_both_gets_what_the_client_sent() -> None:
    template = (
        "{% for m in messages %}{% if m.content is string %}S{{ m.content }}{% else %}"
        "{% for p in m.content %}P{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
    )
    part = {"type": "text", "text": "a"}
    assert render(template, USER, {"role": "user", "content": [part]}).text == "ShiPa"


def test_null_content_stays_null() -> None:
    assert (
        render("{{ messages[0].content is none }}", {"role": "x", "content": None}).text == "True"
    )


def test_null_content_is_empty_for_a_template_that_adds_strings() -> None:
    turn = {"role": "assistant", "content": None}
    assert render("{% for m in messages %}{{ m.content + '!' }}{% endfor %}", turn).text == "!"


def test_other_parts_are_refused_by_place() -> None:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    with pytest.raises(InvalidRequest) as caught:
        render(CHATML, USER, {"role": "user", "content": [image]})
    assert caught.value.param == "messages[1].content[0]"
    assert caught.value.code == "unsupported_value"


def test_arguments_of_tool_calls_are_objects() -> None:
    template = "{{ messages[0].tool_calls[0].function.arguments.city }}"
    call = {"type": "function", "function": {"name": "f", "arguments": '{"city": "Bern"}'}}
    assert render(template, {"role": "assistant", "tool_calls": [call]}).text == "Bern"
    call["function"] = {"name": "f", "arguments": "{"}
    with pytest.raises(InvalidRequest) as caught:
        render(template, {"role": "assistant", "tool_calls": [call]})
    assert caught.value.param == "messages[0].tool_calls[0].function.arguments"


def test_reasoning_under_every_name() -> None:
    template = "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}"
    assert render(template, {"role": "assistant", "reasoning": "R"}).text == "RR"


@pytest.mark.parametrize("trim", ["", " | trim"])
def test_the_final_message_is_continued(trim: str) -> None:
    template = "{% for m in messages %}<{{ m.content" + trim + " }}>{% endfor %}"
    final = {"role": "assistant", "content": "and so "}
    out = render(template, USER, final, continue_final_message=True)
    assert out.text == ("<hi><and so" if trim else "<hi><and so ")


def test_the_last_text_part_is_continued() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    out = render(PARTS, USER, {"role": "assistant", "content": parts}, continue_final_message=True)
    assert out.text == "[hi][a][b"


@pytest.mark.parametrize(
    ("template", "final"),
    [("x", USER), (CHATML, {"role": "assistant", "content": None}), ("x", {"role": "a"})],
)
def test_what_cannot_be_continued_is_refused(template: str, final: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render(template, final, continue_final_message=True)
    assert caught.value.param == "continue_final_message"


def test_continuing_and_a_new_turn_exclude_each_other() -> None:
    with pytest.raises(InvalidRequest, match="exclude"):
        render(CHATML, continue_final_message=True, add_generation_prompt=True)


def test_extra_variables() -> None:
    assert render("{{ enable_thinking }}", kwargs={"enable_thinking": False}).text == "False"
    for name in ("messages", "tools", "eos_token"):
        with pytest.raises(InvalidRequest, match=name) as caught:
            render("x", kwargs={name: "<|im_end|>"})
        assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("field", "data"),
    [
        ("messages", b"{}"),
        ("messages", b"[1]"),
        ("messages", b"\xff"),
        ("tools", b"{}"),
        ("kwargs", b"[]"),
        ("kwargs", b'{"x": ' * 100_000 + b"1" + b"}" * 100_000),
    ],
)
def test_malformed_json_is_refused(field: str, data: bytes) -> None:
    fields = {"messages": b"[]", field: data}
    chat = ChatTemplates({"default": "x"}, {}, LITERAL)
    with pytest.raises(InvalidRequest, match=r"malformed|nested"):
        chat.render(EncodeChat(1, **fields), 1000)


def test_marks_show_where_a_client_imitates_special_tokens() -> None:
    out = render(CHATML, {"role": "user", "content": "x<|im_end|>y"})
    assert out.text == "<|im_start|>user\nx<|im_end|>y<|im_end|>\n"
    [mark] = out.marks
    assert out.text.index("x<|im_end|>y") + 1 < mark < out.text.index("y<|im_end|>")


def test_marks_survive_json_in_ascii() -> None:
    out = render("{{ messages[0].content | tojson(ensure_ascii=True) }}", {"content": "</s>"})
    assert out == Rendered('"</s>"', frozenset({2}))


def test_marks_do_not_show_in_errors() -> None:
    message = {"role": "user", "content": "</s>"}
    with pytest.raises(InvalidRequest) as caught:
        render("{{ raise_exception('no ' + messages[0].content) }}", message)
    assert caught.value.message.endswith(": no </s>")


def test_endless_texts_are_cut_where_nothing_more_fits() -> None:
    assert render("{{ messages[0].content }}", {"content": "  " + "a" * 99}, longest=10).text == (
        "  " + "a" * 10
    )
    padded = {"content": " " * 99 + "a"}
    assert render("{{ messages[0].content | trim }}", padded, longest=10).text == "a"
