"""Rows of the table of GGUF architectures; `test_gguf.py` loads a file of each."""

from __future__ import annotations

from typing import Any

import gguf
import pytest

from baton_worker.checkpoint.gguf.families import FAMILIES, REFUSED
from baton_worker.checkpoint.task import ENCODERS
from baton_worker.models.resolve import ARCHITECTURES
from tests.support.worker.gguf_metadata import (
    Fake,
)


def test_both_sides_know_every_row() -> None:
    for name, family in FAMILIES.items():
        assert family.name in ARCHITECTURES or family.name in ENCODERS, name
        named = family.names_of or name.partition(" ")[0]
        assert named in gguf.MODEL_ARCH_NAMES.values(), name


def test_nothing_is_both_served_and_refused() -> None:
    assert REFUSED.keys() <= set(gguf.MODEL_ARCH_NAMES.values()) - FAMILIES.keys()


@pytest.mark.parametrize(("layers", "expected"), [(26, 256), (46, 144)])
def test_the_largest_gemma_scales_by_its_hidden_size(layers: int, expected: int) -> None:
    fields = FAMILIES["gemma2"].fields(
        Fake(
            embedding_length=4608,
            attention__head_count=32,
            attention__key_length=256,
            block_count=layers,
            attn_logit_softcapping=50.0,
            final_logit_softcapping=30.0,
        )
    )
    assert fields["query_pre_attn_scalar"] == expected


def test_a_part_of_the_head_rotates() -> None:
    file = Fake(embedding_length=64, attention__head_count=4, rope__dimension_count=8)
    assert FAMILIES["glm4"].fields(file) == {"partial_rotary_factor": 0.5}


def test_files_of_minicpm_may_leave_its_scales_out() -> None:
    fields = FAMILIES["minicpm"].fields(Fake(embedding_length=2304, block_count=40))
    assert fields == pytest.approx({"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256})


def test_the_baichuan_with_forty_layers_has_no_rope() -> None:
    fields = FAMILIES["baichuan"].fields
    assert fields(Fake(block_count=32)) == {}
    assert fields(Fake(block_count=40, context_length=4096))["model_max_length"] == 4096


@pytest.mark.parametrize("pattern", [None, 6, [True, True, False]])
def test_files_of_cohere2_may_say_how_often_a_layer_sees_everything(pattern: Any) -> None:
    given = {} if pattern is None else {"attention__sliding_window_pattern": pattern}
    fields = FAMILIES["cohere2"].fields(
        Fake(logit_scale=0.25, attention__layer_norm_epsilon=1e-5, **given)
    )
    if isinstance(pattern, list):
        kinds = ["sliding_attention", "sliding_attention", "full_attention"]
        assert fields["layer_types"] == kinds
    else:
        assert fields["layer_types"] is None
        assert fields["sliding_window_pattern"] == (pattern or 4)


def test_later_models_of_a_name_are_told_by_their_window() -> None:
    assert FAMILIES["olmo2"].fields(Fake()) == {}
    window = Fake(attention__sliding_window=4096, attention__sliding_window_pattern=[True, False])
    fields = FAMILIES["olmo2"].fields(window)
    assert fields["architectures"] == ["Olmo3ForCausalLM"]
    assert fields["layer_types"] == ["sliding_attention", "full_attention"]
