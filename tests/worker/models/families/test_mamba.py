"""Configs of Mamba-1 models, and unsupported variants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.spec import (
    Attention,
    Glu,
    Mamba,
    Moe,
    Norm,
)
from tests.support import tiny_models

JAMBA = {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
ALONE = {"intermediate_size": None, "max_position_embeddings": None, "num_attention_heads": None}


@pytest.mark.row("S01")
def test_a_config_without_sizes_means_those_of_the_paper(spec_of: Any) -> None:
    spec = spec_of("MambaForCausalLM", **ALONE)
    assert spec.layers == ((Mamba(128, 16, 4, 4), None),) * 4
    assert spec.head.tied and spec.norm == Norm(1e-5) and spec.max_length == 2048
    assert spec_of("MambaForCausalLM", **ALONE, time_step_rank="auto", expand=3).layers[0] == (
        Mamba(192, 16, 4, 4),
        None,
    )
    assert spec_of("MambaForCausalLM", max_position_embeddings=512).max_length == 512


def test_falcon_mamba_norms_what_inputs_say_of_states(spec_of: Any) -> None:
    spec = spec_of("FalconMambaForCausalLM", **ALONE, tie_word_embeddings=False)
    assert spec.layers[0][0] == Mamba(128, 16, 4, 4, norm=Norm(1e-6, scaled=False))
    assert not spec.head.tied and spec.max_length == 8192


@pytest.mark.row("S03")
def test_jamba_has_attention_in_every_eighth_layer_and_experts_in_every_other(
    spec_of: Any,
) -> None:
    spec = spec_of("JambaForCausalLM", **JAMBA, num_hidden_layers=16)
    mixers, ffns = zip(*spec.layers, strict=True)
    attends = [layer for layer, mixer in enumerate(mixers) if isinstance(mixer, Attention)]
    assert attends == [4, 12] and mixers[4].rope is None
    assert mixers[0] == Mamba(128, 16, 4, 4, norm=Norm(1e-6))
    assert [type(ffn) for ffn in ffns] == [Glu, Moe] * 8
    assert ffns[1].router.norm is None and not spec.head.tied


def test_jamba_with_one_expert_has_none(spec_of: Any) -> None:
    spec = spec_of("JambaForCausalLM", **JAMBA | {"num_experts": 1})
    assert {type(ffn) for _, ffn in spec.layers} == {Glu}


def test_the_first_checkpoints_call_their_table_otherwise(tmp_path: Path) -> None:
    tiny_models.save_checkpoint(tmp_path, "MambaForCausalLM")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["backbone.embedding.weight"] = tensors.pop("backbone.embeddings.weight")
    save_file(tensors, file)
    load_model(tmp_path, BuildContext(torch.device("cpu"), torch.float32))
