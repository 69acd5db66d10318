"""Quantised tensors reach the layers that run them; the rest is dequantised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.quantized_loading import QuantizedLoader, choose_precision
from baton_worker.kernels.cpu.linear import CpuLinear, JoinedLinear
from baton_worker.kernels.quantized_weights import BlockQuantized, quantise
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Table
from baton_worker.layers.linear import GatedLinear, LanguageHead, Linear
from tests.support import tiny_models

CPU = torch.device("cpu")
needs_kernels = pytest.mark.skipif(
    CpuLinear.refuses(torch.zeros(1, 1)) is not None, reason="no C++ compiler here"
)


@pytest.fixture
def context() -> BuildContext:
    return BuildContext(CPU, torch.float32, lambda role: role)


def some_blocks(rows: int, depth: int = 64, kind: str = "int8") -> BlockQuantized:
    weight = torch.randn(rows, depth, generator=torch.Generator().manual_seed(rows))
    return quantise(weight, kind)


def finished(*layers: nn.Module, **stored: BlockQuantized | torch.Tensor) -> None:
    """What the loader does with `stored` tensors, named without their suffix."""
    taking = QuantizedLoader(layers)  # type: ignore[arg-type]
    named = {f"{name}.weight": tensor for name, tensor in stored.items()}
    wanted = dict(pair for layer in layers for pair in layer.weight_targets())  # type: ignore[operator]
    for name, tensor in taking(named.items()):
        wanted[name].copy_(tensor)
    for layer in layers:
        layer.process_weights_after_loading()  # type: ignore[operator]


@needs_kernels
def test_parts_of_one_kind_are_one_kernel(context: BuildContext) -> None:
    layer = Linear(64, {"a": 8, "b": 40}, context)
    a, b = some_blocks(8), some_blocks(40)
    finished(layer, b=b, a=a)
    assert isinstance(layer._kernel, CpuLinear) and layer.weight is None
    assert 48 * 64 < layer.weight_bytes < 64 * 64 * 2
    x = torch.randn(3, 64)
    expected = x @ torch.cat([a.dequantise(), b.dequantise()]).T
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)


@needs_kernels
def test_parts_of_two_kinds_are_two_kernels(context: BuildContext) -> None:
    layer = Linear(64, {"a": 8, "b": 40}, context)
    a, b = some_blocks(8), some_blocks(40, kind="int4_minimum")
    finished(layer, a=a, b=b)
    assert isinstance(layer._kernel, JoinedLinear)
    x = torch.randn(3, 64)
    expected = x @ torch.cat([a.dequantise(), b.dequantise()]).T
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)


def test_a_part_in_floats_makes_all_floats(context: BuildContext) -> None:
    layer = Linear(64, {"a": 8, "b": 40}, context)
    a, b = some_blocks(8), torch.randn(40, 64)
    finished(layer, a=a, b=b)
    x = torch.randn(3, 64)
    expected = x @ torch.cat([a.dequantise(), b]).T
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("second", ["int8", "int4_minimum"])
def test_gates_of_one_or_two_kinds(context: BuildContext, second: str) -> None:
    layer = GatedLinear(64, 24, context, lambda g, u: nn.functional.silu(g) * u, fused="silu")
    gate, up = some_blocks(24), some_blocks(24, kind=second)
    finished(layer, gate=gate, up=up)
    x = torch.randn(3, 64)
    expected = nn.functional.silu(x @ gate.dequantise().T) * (x @ up.dequantise().T)
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-3)


@needs_kernels
def test_a_tied_head_runs_blocks_and_the_table_keeps_floats(
    context: BuildContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    table = Table(40, 64, "embedding", context)
    head = LanguageHead(64, 40, context, tied_to=table)
    blocks = some_blocks(40)
    finished(table, head, embedding=blocks)
    assert [record.message for record in caplog.records] == [
        "1 quantised weights run as packed as they are",
        "1 quantised tables are looked up as floats",
    ]
    assert torch.equal(table(torch.tensor([7])), blocks.dequantise()[7:8])
    x = torch.randn(2, 64)
    torch.testing.assert_close(head(x), x @ blocks.dequantise().T, rtol=1e-4, atol=1e-4)


def test_blocks_of_another_shape_are_left_to_the_loader(context: BuildContext) -> None:
    layer = Linear(64, {"a": 8}, context)
    taken = list[str]()
    taking = QuantizedLoader([layer], took=taken.append)
    [(name, left)] = taking([("a.weight", some_blocks(9))])
    assert name == "a.weight" and left.shape == (9, 64) and not taken
    assert not [*taking([("a.weight", some_blocks(8))])] and taken == ["a.weight"]


def test_precision_is_chosen_by_layer(context: BuildContext) -> None:
    linear, head = Linear(64, {"a": 8}, context), LanguageHead(64, 40, context)
    gated = GatedLinear(64, 24, context, lambda g, u: g * u)
    for quantize, kinds in (
        ("none", (None, None, None)),
        ("int8", ("int8", "int8", "int8")),
        ("int4", ("int4_minimum", "int8", "int8")),
        ("mxfp4", ("mxfp4", "int8", "int8")),
        ("experts_int8", (None, None, None)),
    ):
        choose_precision([gated, linear, head], quantize)
        assert (gated.quantised_as, linear.quantised_as, head.quantised_as) == kinds


@pytest.mark.parametrize("quantize", ["int8", "int4"])
@pytest.mark.parametrize("kernels", [True, False])
def test_a_model_equals_its_rounded_twin(
    tmp_path: Path, driver: Any, monkeypatch: pytest.MonkeyPatch, quantize: Any, kernels: bool
) -> None:
    """Rounded at load, with and without kernels, against a checkpoint of rounded weights."""
    if not kernels:
        monkeypatch.setattr(CpuLinear, "refuses", lambda *_: "of this test")
    sizes = {"hidden_size": 96, "intermediate_size": 64, "tie_word_embeddings": False}
    oracle = tiny_models.save_checkpoint(tmp_path / "given", "LlamaForCausalLM", **sizes)
    for name, parameter in oracle.named_parameters():
        if parameter.ndim == 2 and "embed" not in name:
            four = quantize == "int4" and ("gate_proj" in name or "up_proj" in name)
            kind = "int4_minimum" if four else "int8"
            parameter.data = quantise(parameter.data, kind).dequantise()
    oracle.save_pretrained(tmp_path / "rounded")
    given = load_model(tmp_path / "given", BuildContext(CPU, torch.float32, quantization=quantize))
    rounded = load_model(tmp_path / "rounded", BuildContext(CPU, torch.float32))
    tokens = list(range(2, 40))
    ours, twin = (driver(model, 1).step({0: tokens})[0] for model in (given, rounded))
    torch.testing.assert_close(ours, twin, rtol=1e-3, atol=1e-3)
    assert (given.weight_bytes < 0.5 * rounded.weight_bytes) is kernels
