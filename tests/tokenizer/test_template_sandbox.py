"""Templates that never end, or want all memory, cost one conversation; all others as in process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from baton.errors import InvalidRequest, ModelError
from baton_tokenizer import template_sandbox
from baton_tokenizer.chat_template import CompiledTemplate
from baton_tokenizer.template_sandbox import SandboxedTemplate

PLAIN = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ m.extra | tojson }}"
    "{% endfor %}{% if messages[0].content == 'no' %}{{ raise_exception('never') }}{% endif %}"
)
_LOOP = "{% for i in range(99999) %}"
SPIN = "{% if messages[0].content == 'spin' %}" + _LOOP * 2 + "{% endfor %}" * 2 + "{% endif %}ok"
HOARD = (
    "{% set n = namespace(x=messages[0].content) %}{% for i in range(40) %}"
    "{% if messages[0].content == 'hoard' %}{% set n.x = n.x ~ n.x %}{% endif %}"
    "{% endfor %}{{ n.x | length }}"
)
VARIABLES = {"bos_token": "<s>"}


def said(text: str) -> dict[str, object]:
    extra = {"big": 10**30, "none": None, "face": "\U0001f600", "half": 0.5}
    return {"messages": [{"role": "user", "content": text, "extra": extra}]}


@contextmanager
def sandboxed(text: str) -> Iterator[SandboxedTemplate]:
    template = SandboxedTemplate(text, VARIABLES)
    try:
        yield template
    finally:
        template.close()


def test_it_renders_and_refuses_as_in_process() -> None:
    plain = CompiledTemplate(PLAIN, VARIABLES)
    with sandboxed(PLAIN) as template:
        assert template.render(said("hi \u00e9")) == plain.render(said("hi \u00e9"))
        for fact in ("reads_parts", "reads_strings", "reads_none"):
            assert getattr(template, fact) == getattr(plain, fact)
        with pytest.raises(InvalidRequest, match="never") as caught:
            template.render(said("no"))
        assert caught.value.param == "messages"


def test_time_and_memory_are_limited_per_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    with sandboxed(SPIN) as template:
        monkeypatch.setattr(template_sandbox, "SECONDS", 0.3)
        with pytest.raises(InvalidRequest, match="too much time") as caught:
            template.render(said("spin"))
        assert caught.value.status == 400
        monkeypatch.setattr(template_sandbox, "SECONDS", 20.0)
        assert template.render(said("fine")) == "ok"
    with sandboxed(HOARD) as template:
        with pytest.raises(InvalidRequest):
            template.render(said("hoard"))
        assert template.render(said("four")) == "4"


def test_a_template_that_never_ends_is_a_model_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "SECONDS", 0.5)
    with pytest.raises(ModelError, match="too much time even for a short message"):
        SandboxedTemplate(SPIN.replace("messages[0].content == 'spin'", "true"), {})
    monkeypatch.setattr(template_sandbox, "SECONDS", 20.0)
    with pytest.raises(ModelError, match="line 1"):
        SandboxedTemplate("{% for %}", {})
