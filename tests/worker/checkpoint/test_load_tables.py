"""Tables of a model without its layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.load_tables import load_tables
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.decoder import Model
from tests.support import tiny_models

CPU = torch.device("cpu")


@pytest.mark.parametrize("tied", [True, False])
def test_they_are_those_of_the_model(tmp_path: Path, tied: bool) -> None:
    tiny_models.save_model(tmp_path, "LlamaForCausalLM", tie_word_embeddings=tied)
    build = BuildContext(CPU, torch.float32, quantization="int8")
    whole, tables = load_model(tmp_path, build).model, load_tables(tmp_path, build, torch.float32)
    assert isinstance(whole, Model) and whole.embedding and whole.head
    assert tables.embedding and tables.head and not tables.stage.layers
    numbers = torch.arange(40)
    rows = whole.embedding(numbers, numbers)
    assert torch.equal(tables.embedding(numbers, numbers), rows)
    assert torch.equal(tables.head(rows), whole.head(rows))
    held = sum(parameter.nbytes for parameter in tables.parameters())
    assert held < sum(parameter.nbytes for parameter in whole.parameters())
    dummy = load_tables(tmp_path, build, torch.float32, dummy=True)
    assert dummy.embedding and dummy.embedding(numbers, numbers).isfinite().all()
