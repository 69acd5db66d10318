"""adapter_config.json: what its fields mean, and what is refused by name."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.lora import peft_config
from baton_worker.lora.peft_config import PeftConfig, refuses

pytestmark = pytest.mark.row("F11.03")
PLAIN = {"peft_type": "LORA", "r": 8, "lora_alpha": 16}


def read(folder: Path, **fields: Any) -> PeftConfig:
    (folder / "adapter_config.json").write_text(json.dumps(PLAIN | fields))
    return PeftConfig.read(folder)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"peft_type": "IA3"}, "only LORA is served"),
        ({"bias": "all"}, "bias: all"),
        ({"lora_bias": True}, "lora_bias"),
        ({"init_lora_weights": "pissa_niter_4"}, "changed the base weights"),
        ({"trainable_token_indices": [1]}, "embedding table"),
        ({"from_the_future": 3}, "from_the_future"),
        ({"r": math.inf}, "not one that peft has written"),
        ({"rank_pattern": {"q_proj": 0}}, "a rank below 1"),
        ({"lora_alpha": math.inf}, "an alpha that is not finite"),
        ({"alpha_pattern": {"q_proj": math.nan}}, "an alpha that is not finite"),
        ({"task_type": "x" * 2**22}, "more than 4194304 bytes"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        read(tmp_path, **fields)


def test_every_field_of_peft_is_judged() -> None:
    from peft import LoraConfig

    known = {*peft_config.REFUSED, *peft_config.IGNORED, *peft_config._READ}
    fields = dataclasses.fields(LoraConfig)
    assert not {field.name for field in fields} - known
    written = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM").to_dict()
    plain = {k: v.value if hasattr(v, "value") else v for k, v in written.items()}
    assert refuses(plain) is None
