"""The setting `lora_modules`, as names and paths and as vLLM's JSON."""

from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton_worker.lora.modules import LoraModule, lora_modules


def test_both_spellings() -> None:
    wanted = [LoraModule("sql", "/a/b"), LoraModule("chat", "c=d")]
    assert lora_modules("sql=/a/b, chat=c=d") == wanted
    objects = '{"name": "sql", "path": "/a/b", "base_model_name": "m"},{"name":"chat","path":"c=d"}'
    assert lora_modules(objects) == wanted
    assert lora_modules("") == []


@pytest.mark.parametrize("text", ["sql", "=x", "sql=", "a=1,a=2", '{"name": "a"}', "{", "{} x"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="--lora-modules"):
        lora_modules(text)
