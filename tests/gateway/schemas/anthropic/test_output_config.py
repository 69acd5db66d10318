"""The format of the text."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.anthropic.output_config import check_config, check_format

FORM = {"type": "json_schema", "schema": {"type": "object"}}


def test_a_schema_or_none() -> None:
    assert check_config(None) is None and check_format(None) is None
    assert check_config({"effort": "low"}) == {"effort": "low", "format": None}
    assert check_config({"format": FORM}) == {"format": FORM}
    assert check_format(FORM) == FORM


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (5, ""),
        ({"format": 5}, ".format"),
        ({"format": {"type": "xml"}}, ".format.type"),
        ({"format": {"type": "json_schema"}}, ".format.schema"),
        ({"format": FORM | {"schema": 5}}, ".format.schema"),
    ],
)
def test_others_are_refused(value: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_config(value)
    assert caught.value.param == f"output_config{param}"
