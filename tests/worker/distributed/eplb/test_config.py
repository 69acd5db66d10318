"""vLLM's JSON."""

from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton_worker.distributed.eplb.config import EplbConfig, parse


@pytest.mark.row("F14.12")
def test_fields_are_those_of_vllm() -> None:
    assert parse("") == EplbConfig(1000, 3000, 0, False, 1, True, "default", None)
    text = (
        '{"window_size": 10, "step_interval": 20, "num_redundant_experts": 4, "use_async": false}'
    )
    assert parse(text) == EplbConfig(10, 20, 4, use_async=False)
    assert parse('{"policy": "default", "communicator": null, "log_balancedness": true}') == (
        EplbConfig(log_balancedness=True)
    )


@pytest.mark.row("F14.12")
def test_what_has_no_meaning_is_refused() -> None:
    for text, why in (
        ("[]", "is not a JSON object"),
        ('{"window": 3}', "unknown field 'window'"),
        ('{"step_intervall": 3}', "Did you mean 'step_interval'?"),
        ('{"step_interval": 0}', "`int` >= 1"),
        ('{"num_redundant_experts": -1}', "`int` >= 0"),
        ('{"policy": "swipe"}', "one policy, default"),
        ('{"communicator": "nixl"}', "Leave communicator out"),
    ):
        with pytest.raises(SettingsError) as error:
            parse(text)
        assert why in error.value.message and error.value.message.startswith("--eplb-config")
