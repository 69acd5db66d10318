"""Spec to modules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.models import resolve
from baton_worker.models.build import LAYERS, build
from baton_worker.spec.hf_config import read_config
from tests.support import tiny_models

CPU = torch.device("cpu")


@pytest.fixture
def decoder(tmp_path: Path) -> spec.Decoder:
    tiny_models.tiny_config("LlamaForCausalLM").save_pretrained(tmp_path)
    return resolve(read_config(tmp_path))


def test_every_spec_type_has_a_layer(decoder: spec.Decoder) -> None:
    assert {type(part) for pair in decoder.layers for part in pair} <= set(LAYERS)


def test_parameters_have_the_dtype_and_need_no_gradient(decoder: spec.Decoder) -> None:
    model = build(decoder, BuildContext(CPU, torch.bfloat16))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in model.parameters())
    assert len(model.blocks) == len(decoder.layers)


def test_names_of_the_spec_reach_the_layers(decoder: spec.Decoder) -> None:
    names = (("norm", "transformer.ln_f"), ("up", "h.{layer}.up"))
    renamed = replace(decoder, tensors=spec.TensorLayout(names=names))
    model = build(renamed, BuildContext(CPU, torch.float32))
    found = {name for layer in model.layers() for name, _ in layer.weight_targets()}
    assert {"transformer.ln_f.weight", "h.2.up.weight"} <= found


def test_unknown_rope_is_refused(decoder: spec.Decoder) -> None:
    mixer, ffn = decoder.layers[0]
    odd = replace(mixer, rope=replace(mixer.rope, kind="spiral"))
    with pytest.raises(ModelError, match="spiral"):
        build(replace(decoder, layers=((odd, ffn),)), BuildContext(CPU, torch.float32))
