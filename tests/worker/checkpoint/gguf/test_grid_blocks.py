"""Types with grids: steps and factors are those of the file, and no number is lost."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from baton_worker.checkpoint.gguf.grid_blocks import GRID_TYPES
from baton_worker.kernels.block_kinds import KINDS


@pytest.mark.parametrize("kind", GRID_TYPES, ids=lambda kind: kind.name)
def test_steps_are_per_group_and_factors_per_block(kind: gguf.GGMLQuantizationType) -> None:
    size = gguf.GGML_QUANT_SIZES[kind][1]
    stored = np.random.default_rng(1).integers(0, 60, (3, 2, size), np.uint8)
    given = torch.from_numpy(stored)
    blocks = GRID_TYPES[kind].read(given)
    form = KINDS[blocks.kind]
    assert blocks.codes.shape == (3, 512) and blocks.scales.shape == (3, 2)
    if blocks.scale_steps is not None:
        assert blocks.scale_steps.shape == (3, 512 // form.group)
        assert int(blocks.scale_steps.min()) > 0
    assert np.array_equal(given.numpy(), stored), "the file is mapped: it must not change"


def test_a_factor_of_zero_is_kept() -> None:
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.IQ2_XS][1]
    blocks = GRID_TYPES[gguf.GGMLQuantizationType.IQ2_XS].read(torch.zeros(1, 1, size).byte())
    assert not blocks.dequantise().any() and blocks.codes.shape == (1, 256)
