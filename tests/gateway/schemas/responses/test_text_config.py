"""The format of the text as that of a chat."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.responses.text_config import chat_format, text_config


def test_formats_are_those_of_a_chat() -> None:
    assert chat_format(text_config({})) == {"response_format": {"type": "text"}}
    assert chat_format(text_config({"format": {"type": "json_object"}, "verbosity": "low"})) == {
        "response_format": {"type": "json_object"},
        "verbosity": "low",
    }
    schema = {"name": "n", "schema": {"type": "object"}, "strict": True}
    asked = chat_format(text_config({"format": {"type": "json_schema"} | schema}))
    assert asked == {"response_format": {"type": "json_schema", "json_schema": schema}}


@pytest.mark.parametrize("value", [5, {"format": {"type": "xml"}}, {"verbosity": 5}])
def test_others_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        text_config(value)
    assert (caught.value.param or "").startswith("text")
