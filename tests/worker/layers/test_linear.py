"""Fused linear layers and the language head."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Table
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import LanguageHead, Linear


def fill(layer: Layer) -> dict[str, torch.Tensor]:
    """Random values for every destination, copied in as the loader does."""
    values = {name: torch.randn(rows.shape) for name, rows in layer.weight_targets()}
    for name, rows in layer.weight_targets():
        rows.copy_(values[name])
    return values


def test_parts_are_one_product(context: BuildContext) -> None:
    layer = Linear(8, {"a": 4, "b": 2}, context, bias=True)
    values = fill(layer)
    assert list(values) == ["a.weight", "b.weight", "a.bias", "b.bias"]
    x = torch.randn(3, 8)
    expected = [F.linear(x, values[f"{part}.weight"], values[f"{part}.bias"]) for part in "ab"]
    for _ in range(2):  # as loaded, then in the device's layout
        with torch.inference_mode():
            torch.testing.assert_close(layer(x), torch.cat(expected, -1))
        if layer.weight is not None:
            layer.process_weights_after_loading()


def test_a_part_without_a_bias(context: BuildContext) -> None:
    """As Whisper's keys: the others have theirs."""
    layer = Linear(4, {"a": 4, "b": 2}, context, bias=True, unbiased=("b",))
    values = fill(layer)
    assert list(values) == ["a.weight", "b.weight", "a.bias"]
    x = torch.randn(3, 4)
    expected = F.linear(x, values["a.weight"], values["a.bias"]), F.linear(x, values["b.weight"])
    layer.process_weights_after_loading()
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), torch.cat(expected, -1))


def test_residual_is_added(context: BuildContext) -> None:
    layer = Linear(4, {"a": 4}, context)
    fill(layer)
    x, stream = torch.randn(2, 4), torch.randn(2, 4)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x, stream), layer(x) + stream)


def test_tied_head_loads_nothing_and_keeps_the_table(context: BuildContext) -> None:
    table = Table(10, 4, "embedding", context)
    weight = fill(table)["embedding.weight"]
    head = LanguageHead(4, 10, context, tied_to=table)
    assert list(head.weight_targets()) == []
    head.process_weights_after_loading()
    x = torch.randn(3, 4)
    with torch.inference_mode():
        torch.testing.assert_close(head(x), x @ weight.T)
        # Packed by the head or not, the rows are the same.
        assert torch.equal(table(torch.tensor([7, 0, 7])), weight[[7, 0, 7]])


def test_logits_are_float32() -> None:
    context = BuildContext(torch.device("cpu"), torch.bfloat16, lambda role: role)
    head = LanguageHead(4, 10, context)
    fill(head)
    with torch.inference_mode():
        assert head(torch.randn(3, 4).bfloat16()).dtype is torch.float32
