"""Every rank's slices of a checkpoint together are the checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from baton.errors import SettingsError
from baton_worker import spec
from baton_worker.distributed.shard_spec import Shard
from baton_worker.distributed.shard_weights import (
    Parts,
    WeightShard,
    sliced,
    slices,
)
from baton_worker.kernels.quantized_weights import BlockQuantized, quantise
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import Linear
from baton_worker.layers.moe.moe import Experts
from baton_worker.layers.norm import norm

SITE = BuildContext(torch.device("cpu"), torch.float32, lambda role: role)
META = replace(SITE, device=torch.device("meta"))


def stored(*shape: int) -> Tensor:
    return torch.arange(1.0, torch.Size(shape).numel() + 1).view(shape)


def filled(part: Layer, whole: Layer, share: Shard) -> dict[str, WeightShard]:
    """The destinations of a part, each filled from a tensor of the whole."""
    wanted = slices([part], Parts([whole], share))
    for destination in wanted.values():
        destination.copy_(stored(*destination.shape))
    return wanted


def test_rows_lie_one_after_the_other() -> None:
    parts = [Linear(4, {"query": 6, "key": 2}, SITE, bias=True) for _ in range(2)]
    whole = Linear(4, {"query": 12, "key": 4}, META, bias=True)
    for rank, part in enumerate(parts):
        filled(part, whole, Shard(rank, 2))
    query, key = torch.cat([p.weight[:6] for p in parts]), torch.cat([p.weight[6:] for p in parts])
    assert torch.equal(query, stored(12, 4)) and torch.equal(key, stored(4, 4))
    assert torch.equal(torch.cat([p.bias[6:] for p in parts]), stored(4))


def test_a_head_that_two_ranks_share_is_whole_on_both() -> None:
    whole = Linear(4, {"query": 16, "key": 4}, META)  # Two key heads of two channels.
    parts = [Linear(4, {"query": 4, "key": 2}, SITE) for _ in range(4)]
    for rank, part in enumerate(parts):
        filled(part, whole, Shard(rank, 4))
    keys = [part.weight[4:] for part in parts]
    assert torch.equal(keys[0], stored(4, 4)[:2]) and torch.equal(keys[1], keys[0])
    assert torch.equal(keys[2], stored(4, 4)[2:]) and torch.equal(keys[3], keys[2])


def test_columns_are_summands_so_their_bias_is_added_once() -> None:
    parts = [Linear(5, {"output": 4}, SITE, bias=True) for _ in range(2)]
    whole = Linear(10, {"output": 4}, META, bias=True)
    for rank, part in enumerate(parts):
        filled(part, whole, Shard(rank, 2))
    assert torch.equal(torch.cat([p.weight for p in parts], 1), stored(4, 10))
    assert torch.equal(parts[0].bias, stored(4)) and not parts[1].bias.any()


def test_rows_behind_the_end_are_zeros() -> None:
    part, whole = Linear(3, {"head": 4}, SITE), Linear(3, {"head": 10}, META)
    filled(part, whole, Shard(2, 3))
    assert torch.equal(part.weight[:2], stored(10, 3)[8:]) and not part.weight[2:].any()


def test_experts_are_cut_one_by_one() -> None:
    moe = spec.Moe(spec.Router(3, 1), spec.Glu(8, bias=True))
    here, there = (replace(s, name=lambda role: f"{role}.{{expert}}") for s in (SITE, META))
    whole = Experts(moe, 4, there)
    part = Experts(replace(moe, expert=spec.Glu(4, bias=True)), 4, here)
    wanted = filled(part, whole, Shard(1, 2))
    assert len(wanted) == 18 and part.gate_up is not None and part.down is not None
    assert torch.equal(part.gate_up[2, 4:], stored(8, 4)[4:])
    assert torch.equal(part.down[2], stored(4, 8)[:, 4:])
    assert not part.down_bias.any() and torch.equal(part.gate_up_bias[0, :4], stored(8)[4:])


def test_tensors_of_the_heads_of_others_are_wanted_by_nobody() -> None:
    context = replace(SITE, name=lambda role: "norms.{head}")
    settings = spec.Norm(1e-5, "layer", bias=True)
    layers = [norm(settings, (n, 3), "key_norm", context, first) for n, first in ((2, 2), (4, 0))]
    wanted = slices([layers[0]], Parts([layers[1]], Shard(1, 2)))
    assert [name for name, _ in layers[0].weight_targets()][:2] == [
        "norms.2.weight",
        "norms.3.weight",
    ]
    assert [d.elsewhere for d in wanted.values()] == [True, True, False, False] * 2
    assert list(wanted) == [f"norms.{h}.{kind}" for kind in ("weight", "bias") for h in range(4)]
    for number, destination in enumerate(wanted.values()):
        destination.copy_(torch.full((3,), float(number)))
    assert layers[0].weight[:, 0].tolist() == [2.0, 3.0]
    assert layers[0].bias[:, 0].tolist() == [6.0, 7.0]


@pytest.fixture
def blocks() -> BlockQuantized:
    return quantise(torch.randn(10, 128, generator=torch.Generator().manual_seed(0)), "int8")


def test_blocks_are_cut_by_rows(blocks: BlockQuantized) -> None:
    target = torch.empty(4, 128)
    part = WeightShard(torch.empty(10, 128), target, Shard(2, 3), False).of(blocks, "head.weight")
    assert torch.equal(part.dequantise()[:2], blocks.dequantise()[8:])
    assert not part.dequantise()[2:].any() and part.shape == (4, 128)


def test_blocks_are_cut_by_columns_between_two_of_them(blocks: BlockQuantized) -> None:
    target = torch.empty(10, 64)
    wanted: dict[str, Any] = {
        "down.weight": WeightShard(torch.empty(10, 128), target, Shard(1, 2), False)
    }
    part = sliced(wanted, "down.weight", blocks)
    assert torch.equal(part.dequantise(), blocks.dequantise()[:, 64:])
    assert sliced({"down.weight": torch.empty(10, 128)}, "down.weight", blocks) is blocks
    assert sliced({}, "down.weight", blocks) is blocks


def test_blocks_are_not_torn_apart(blocks: BlockQuantized) -> None:
    part = WeightShard(torch.empty(10, 128), torch.empty(10, 16), Shard(3, 8), False)
    with pytest.raises(SettingsError, match=r"down\.weight is stored in blocks of 32 columns"):
        part.of(blocks, "down.weight")


def test_a_weight_is_rounded_on_several_ranks_if_it_is_on_one() -> None:
    part, whole = Linear(16, {"output": 4}, SITE), Linear(32, {"output": 4}, META)
    assert slices([part], Parts([whole], Shard(0, 2)))
    with pytest.raises(SettingsError, match="rounded in groups of 32 columns, and a part has 16"):
        slices([part], Parts([whole], Shard(0, 2), multiple=32))
    part, whole = Linear(10, {"output": 4}, SITE), Linear(20, {"output": 4}, META)
    assert slices([part], Parts([whole], Shard(0, 2), multiple=32))
