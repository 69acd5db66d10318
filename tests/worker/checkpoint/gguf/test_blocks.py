"""Blocks of GGUF against the reference reader, which dequantises them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from baton_worker.checkpoint.gguf.blocks import BLOCK_TYPES, open_blocks

HALVES: dict[str, tuple[int, ...]] = {
    **{"Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q4_K": (0, 2), "Q6_K": (208,)},
    **{"Q5_0": (0,), "Q5_1": (0, 2), "Q5_K": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,)},
    **{"IQ4_NL": (0,), "IQ4_XS": (0,), "IQ1_S": (0,), "TQ1_0": (52,), "TQ2_0": (64,)},
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0,)),
    "IQ1_M": (),
    **{"MXFP4": (), "NVFP4": ()},
}
"""Where a block holds half-precision numbers: random bytes there could be no number."""


def test_the_list_is_complete() -> None:
    assert {gguf.GGMLQuantizationType(kind).name for kind in BLOCK_TYPES} == set(HALVES)


@pytest.mark.parametrize("name", HALVES)
def test_equals_the_reference(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    size, count = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (6, 512 // size, count), np.uint8)
    for first in HALVES[name]:
        numbers = random.normal(size=(*blocks.shape[:2], 1)).astype(np.float16)
        blocks[..., first : first + 2] = numbers.view(np.uint8)
    if name == "MXFP4":
        blocks[..., 0] = random.integers(100, 140, blocks.shape[:2])  # no power beyond a float's
    if name == "NVFP4":
        blocks[..., :4] &= 127  # scales have no sign
    rows = blocks.reshape(6, -1)
    expected = torch.from_numpy(gguf.quants.dequantize(rows, kind))
    opened = open_blocks(kind, rows)
    assert opened.shape == expected.shape == (6, 512)
    torch.testing.assert_close(opened.dequantise(), expected, rtol=1e-6, atol=1e-6)
