"""Only enabled processors with valid arguments are accepted."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton.protocol import Submit
from baton_gateway.generation.logits_processors import check
from tests.fakes.gateway_app import error_of, site

pytestmark = pytest.mark.row("F09.15")
ENABLED = ("no_repeat_ngram",)


def test_an_argument_is_passed_on_as_json() -> None:
    assert check({"no_repeat_ngram": {"size": 3}}, ENABLED) == {"no_repeat_ngram": '{"size":3}'}
    assert check({}, ()) == {}


@pytest.mark.parametrize(
    "value", [{"size": 0}, {"size": 65}, {"size": True}, {"size": 2, "x": 1}, {}, 3, None]
)
def test_a_wrong_argument(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="size") as caught:
        check({"no_repeat_ngram": value}, ENABLED)
    assert caught.value.param == "processors.no_repeat_ngram"


def test_a_long_argument() -> None:
    with pytest.raises(InvalidRequest, match="4096"):
        check({"no_repeat_ngram": "x" * 5000}, ENABLED)


def test_enabled_by_the_operator() -> None:
    with site(logits_processors="no_repeat_ngram") as here:
        assert here.chat(processors={"no_repeat_ngram": {"size": 2}}).status_code == 200
        submit = here.engine.scheduler.seen[0]
        assert isinstance(submit, Submit)
        assert submit.sampling.processors == {"no_repeat_ngram": '{"size":2}'}
        assert error_of(here.chat(processors={"other": 1}))["param"] == "processors.other"
        code = error_of(here.chat(logits_processors=["os.system"]))["code"]
        assert code == "field_not_allowed"
