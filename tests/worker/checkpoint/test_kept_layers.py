"""What a layer has made of its weights, moved into memory that outlives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.checkpoint.kept_layers import KeptBlocks, NotKept, describe, read
from baton_worker.device_keeper.kept_memory import KeptMemory
from baton_worker.kernels.linear import PlainLinear
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.linear import Linear
from tests.fakes.kept_device import KeptDevice, kept_device

SITE = BuildContext(torch.device("cpu"), torch.float32)


def blocks_of(device: KeptDevice) -> KeptBlocks:
    def lease(number: int, size: int) -> KeptMemory | None:
        return device.client.lease(f"weights {number}", b"k" * 32, size)

    first = lease(0, 1 << 10)
    assert first is not None
    return KeptBlocks(first, lease)


def test_tensors_move_with_their_shapes_and_names_stay_names(run_dir: Path, tmp_path: Path) -> None:
    layer: Any = Linear(64, {"a": 300}, SITE, bias=True)
    weight = torch.randn(64, 300).T
    layer._kernel = PlainLinear(weight, layer.bias)
    layer.weight, layer._row_squares = None, weight[3:5, ::2]
    with kept_device(run_dir, tmp_path) as device:
        blocks = blocks_of(device)
        made = read(layer, describe(layer, blocks), blocks)
        assert len(blocks.memories) == 2 and len(blocks.memories[1].memory) >= 300 * 64 * 4
        kernel, squares = made["_kernel"], made["_row_squares"]
        assert kernel._weight.stride() == weight.stride() and torch.equal(kernel._weight, weight)
        assert torch.equal(squares, weight[3:5, ::2]) and kernel._bias is layer.bias
        assert made["weight"] is None and made.keys() == set(layer.processed)
        where = kernel._weight.data_ptr() - blocks.memories[1].memory.data_ptr()
        assert 0 <= where < len(blocks.memories[1].memory)
        # What lies there is not moved again, and the next process opens the same blocks.
        layer.restore(made)
        assert layer.single_use and layer._kernel is kernel
        describe(layer, blocks)
        assert len(blocks.memories) == 2
        blocks.seal()
        sizes = [len(kept.memory) for kept in blocks.memories]
        other = blocks_of(device)
        assert other.open(sizes) and not blocks_of(device).open([*sizes[:-1], 8])
        again = read(layer, describe(layer, blocks), other)
        assert torch.equal(again["_kernel"]._weight, weight)
        other.memories[1].memory[0] += 1
        assert not blocks_of(device).open(sizes), "it is not what was sealed"
        del made, kernel, squares, again, other


def test_what_cannot_be_moved_or_read_is_said(run_dir: Path, tmp_path: Path) -> None:
    layer: Any = Linear(64, {"a": 300}, SITE)
    with kept_device(run_dir, tmp_path) as device:
        blocks = blocks_of(device)
        with pytest.raises(NotKept, match=r"Linear cannot be read \("):
            read(layer, b"\xc1", blocks)
        layer._kernel = {1}
        with pytest.raises(NotKept, match=r"Linear cannot be described \(builtins.set is not of"):
            describe(layer, blocks)
        layer._kernel, device.driver.capacity = None, 0
        with pytest.raises(NotKept, match="its keeper has no memory for them"):
            describe(Linear(640, {"a": 300}, SITE), blocks)
