"""Every scheme in every place that holds a matrix: a linear layer, the embedding table, the head
and experts. The logits are those of the floats that are meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.linear import LanguageHead
from baton_worker.layers.moe.moe import Experts
from tests.support.worker.quantization_cases import CASES, save

PROMPT = list(range(2, 40))


def head_bits(loaded: LoadedModel) -> float:
    """Bits of a weight of the head, as it is held."""
    [head] = [layer for layer in loaded.model.layers() if isinstance(layer, LanguageHead)]
    return (head.weight_bytes or 0) * 8 / (loaded.spec.hidden * loaded.vocab_size)


@pytest.mark.row("F03.28", "F03.33")
def test_logits_are_those_of_the_floats_that_are_meant(tmp_path: Path, driver: Any) -> None:
    for name, case in CASES.items():
        oracle = save(tmp_path / name, name)
        loaded = load_model(tmp_path / name, BuildContext(torch.device("cpu"), torch.float32))
        assert any(isinstance(layer, Experts) for layer in loaded.model.layers())
        ours = driver(loaded, 1).step({0: PROMPT})[0]
        with torch.inference_mode():
            expected = oracle(torch.tensor([PROMPT]), use_cache=False).logits[0]
        assert float((ours - expected).abs().max()) < 1e-3, name
        assert head_bits(loaded) < 1.15 * case.bits, name
