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
Q, UP = "model.layers.0.self_attn.q_proj", "model.layers.11.mlp.up_proj"


def read(folder: Path, **fields: Any) -> PeftConfig:
    (folder / "adapter_config.json").write_text(json.dumps(PLAIN | fields))
    return PeftConfig.read(folder)


def test_scales_follow_rank_alpha_and_their_patterns(tmp_path: Path) -> None:
    plain = read(tmp_path)
    assert (plain.rank_of(Q), plain.scale_of(Q)) == (8, 2.0)
    assert read(tmp_path, use_rslora=True).scale_of(Q) == 16 / math.sqrt(8)
    patterns = read(
        tmp_path,
        rank_pattern={"self_attn.q_proj": 4, r".*\.1\d\..*": 32},
        alpha_pattern={"up_proj": 64, "proj": 1},
    )
    assert (patterns.rank_of(Q), patterns.scale_of(Q)) == (4, 4.0)
    assert (patterns.rank_of(UP), patterns.scale_of(UP)) == (32, 2.0)
    assert plain.canonical() != patterns.canonical()


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
        ({"alpha_pattern": {"(": 3}}, None),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], words: str | None
) -> None:
    with pytest.raises(ModelError, match=words or "no regular expression"):
        read(tmp_path, **fields).scale_of(Q)


def test_every_field_of_peft_is_judged() -> None:
    from peft import LoraConfig

    known = {*peft_config.REFUSED, *peft_config.IGNORED, *peft_config._READ}
    fields = dataclasses.fields(LoraConfig)
    assert not {field.name for field in fields} - known
    written = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM").to_dict()
    plain = {k: v.value if hasattr(v, "value") else v for k, v in written.items()}
    assert refuses(plain) is None
