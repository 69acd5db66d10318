"""A conformance suite of three APIs over the gateway; the model's words are given.

Its tests of pictures run where a model sees: tests/system/test_transparent_images.py.
"""

from __future__ import annotations

import pytest

from tests.fakes.gateway_engine import MODEL
from tests.fakes.gateway_socket import site
from tests.support.conformance import SPECS, failures
from tests.support.served_system import until

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Rome"}}\n</tool_call>'


@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.row("F18.01", "F18.04")
def test_every_test_passes() -> None:
    with site() as here:
        here.engine.scheduler.max_length = 4096
        here.engine.tokenizer.tool_call_parser = "hermes"
        here.engine.tokenizer.restart()
        until(
            lambda: [i.tool_call_parser for i in here.engine.tokenizers.infos] == ["hermes"],
            "the format is known",
        )

        def script(test: str) -> None:
            here.engine.scheduler.reply = CALL if "tool-calling" in test else "Hello to you."

        for kind in SPECS:
            assert failures(here.url, MODEL, kind, images=False, before=script) == []
