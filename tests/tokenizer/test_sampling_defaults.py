"""Defaults of sampling: the checkpoint's recommendation, and the operator's word."""

from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton_tokenizer.sampling_defaults import sampling_defaults

RECOMMENDED = {"temperature": 0.7, "top_k": 20, "top_p": None, "eos_token_id": 2, "do_sample": True}


def test_what_requests_can_say_is_taken() -> None:
    assert sampling_defaults(RECOMMENDED, "auto", "") == {"temperature": 0.7, "top_k": 20}
    assert sampling_defaults({}, "auto", "") == {}


def test_the_operator_is_stronger() -> None:
    override = '{"temperature": 0, "max_new_tokens": 9}'
    found = sampling_defaults(RECOMMENDED, "auto", override)
    assert found == {"temperature": 0, "top_k": 20, "max_new_tokens": 9}
    assert sampling_defaults(RECOMMENDED, "vllm", "") == {}
    assert sampling_defaults(RECOMMENDED, "vllm", '{"min_p": 0.1}') == {"min_p": 0.1}


@pytest.mark.parametrize(
    ("recommended", "override", "said"),
    [
        (
            {"temperature": "hot"},
            "",
            r"generation_config.json: .*\$.temperature.* use --generation-config vllm",
        ),
        ({"top_p": 2}, "", r"generation_config.json: .*\$.top_p"),
        ({}, "{", "--override-generation-config is not JSON"),
        ({}, '{"temprature": 1}', "--override-generation-config: .*temprature"),
        ({}, "[]", "--override-generation-config: Expected `object`"),
    ],
)
def test_what_no_request_may_say_is_refused(
    recommended: dict[str, object], override: str, said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        sampling_defaults(recommended, "auto", override)
