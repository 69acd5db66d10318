"""Perplexity of a trained model at each precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.layers.build_context import BuildContext

CPU = torch.device("cpu")
NUM_TEXTS, NUM_TOKENS, FIRST = 8, 160, 1
MOST = {
    (torch.bfloat16, "none"): 0.5,
    (torch.float32, "int8"): 1.0,
    (torch.bfloat16, "int8"): 1.0,
    # A quarter of a million weights have little to spare; larger models lose less.
    (torch.float32, "int4"): 5.0,
    (torch.bfloat16, "int4"): 5.0,
}
"""Per cent of perplexity above float32."""


@pytest.fixture(scope="module")
def texts(stories: Path, driver: Any) -> list[list[int]]:
    """Stories that the float32 model tells: sampled, always the same."""
    model = driver(load_model(stories, BuildContext(CPU, torch.float32)), NUM_TEXTS)
    generator = torch.Generator().manual_seed(0)
    told = [[FIRST] for _ in range(NUM_TEXTS)]
    for _ in range(NUM_TOKENS):
        step = model.step({row: text[-1:] for row, text in enumerate(told)})
        for row, logits in step.items():
            drawn = torch.multinomial(logits[-1].softmax(-1), 1, generator=generator)
            told[row].append(int(drawn))
    return told


def perplexity(loaded: LoadedModel, texts: list[list[int]], driver: Any) -> float:
    logits = driver(loaded, NUM_TEXTS).step(dict(enumerate(texts)))
    losses = [
        F.cross_entropy(logits[row][:-1].double(), torch.tensor(text[1:]))
        for row, text in enumerate(texts)
    ]
    return float(torch.stack(losses).mean().exp())


@pytest.mark.parametrize(("dtype", "quantize"), MOST)
def test_perplexity(
    stories: Path, texts: list[list[int]], driver: Any, dtype: torch.dtype, quantize: Any
) -> None:
    exact = load_model(stories, BuildContext(CPU, torch.float32))
    rounded = load_model(stories, BuildContext(CPU, dtype, quantization=quantize))
    ratio = perplexity(rounded, texts, driver) / perplexity(exact, texts, driver)
    assert abs(ratio - 1) * 100 < MOST[dtype, quantize]
