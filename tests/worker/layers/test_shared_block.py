"""Layers that share weights hold them once, and answer with their own adapters."""

from __future__ import annotations

from pathlib import Path

import torch

from baton_worker.checkpoint.load import load_model
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.shared_block import Adapted, LowRank, SharedAttention, SharedGlu
from baton_worker.models.block import SharedTransformer
from tests.support import tiny_models

SITE = BuildContext(torch.device("cpu"), torch.float32)


def test_an_adapter_is_added_to_each_part() -> None:
    adapter = LowRank(4, 2, {"query": 3, "key": 5}, SITE)
    for _, target in (pair for layer in (adapter.down, *adapter.ups) for pair in pairs(layer)):
        target.normal_()
    x = torch.randn(7, 4)
    down, (query, key) = adapter.down.weight, [up.weight for up in adapter.ups]
    assert down is not None
    expected = torch.cat((x @ down[:2].T @ query.T, x @ down[2:].T @ key.T), -1)
    assert torch.allclose(adapter(x), expected, atol=1e-5)
    base = torch.nn.Linear(4, 8, bias=False)
    with_residual = lambda x, residual: base(x) + (0 if residual is None else residual)  # noqa: E731
    assert torch.equal(Adapted(with_residual, adapter)(x), base(x) + adapter(x))
    assert torch.equal(Adapted(with_residual, None)(x), base(x))


def pairs(layer: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return list(layer.weight_targets())


def test_a_block_is_held_once_and_its_adapters_by_each_layer(tmp_path: Path) -> None:
    theirs = tiny_models.save_checkpoint(tmp_path, "Zamba2ForCausalLM")
    model = load_model(tmp_path, SITE).model
    shared = [block for block in model.blocks if isinstance(block, SharedTransformer)]
    first, second, third = shared  # Blocks 0, 1 and 0 again.
    for block in shared:
        assert isinstance(block.mixer, SharedAttention) and isinstance(block.ffn, SharedGlu)
    assert third.mixer.project.base is first.mixer.project.base is not second.mixer.project.base
    assert third.ffn.gate_up is first.ffn.gate_up and third.mixer_norm is first.mixer_norm
    assert third.mixer.project.adapter is not first.mixer.project.adapter
    held = sum(layer.weight_bytes for layer in model.layers()) + sum(
        parameter.nbytes for parameter in model.parameters()
    )
    needed = 4 * sum(parameter.numel() for parameter in theirs.parameters())
    assert held < 1.2 * needed, "padding of packed weights alone: a block more is a quarter"
