"""From token ids to the first hidden state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Embedding, Learned, Table
from baton_worker.layers.layer import Layer

TOKENS, POSITIONS = torch.tensor([4, 0, 2]), torch.tensor([7, 0, 1])


def made(settings: spec.Embedding, context: BuildContext) -> tuple[Embedding, dict[str, Tensor]]:
    embedding, weights = Embedding(settings, 5, 4, context), {}
    for part in embedding.modules():
        if isinstance(part, Layer):
            for name, rows in part.weight_targets():
                weights[name] = rows.copy_(torch.randn(rows.shape))
    return embedding, weights


def run(embedding: Embedding) -> Tensor:
    with torch.inference_mode():
        out: Tensor = embedding(TOKENS, POSITIONS)
    return out


def test_looks_up_rows(context: BuildContext) -> None:
    layer = Table(5, 3, "embedding", context)
    ((name, table),) = layer.weight_targets()
    table.copy_(torch.arange(15.0).view(5, 3))
    assert name == "embedding.weight"
    assert layer(torch.tensor([4, 0])).tolist() == [[12.0, 13.0, 14.0], [0.0, 1.0, 2.0]]


def test_scales_in_the_precision_of_the_checkpoint(context: BuildContext) -> None:
    half = BuildContext(context.device, torch.bfloat16, context.name)
    embedding, weights = made(spec.Embedding(scale=48**0.5), half)
    rounded = torch.tensor(48**0.5, dtype=torch.bfloat16)
    assert torch.equal(run(embedding), weights["embedding.weight"][TOKENS] * rounded)


@pytest.mark.row("F23.07")
def test_adds_learned_positions_from_an_offset_on(context: BuildContext) -> None:
    embedding, weights = made(spec.Embedding(positions=spec.Positions(10, offset=2)), context)
    expected = weights["embedding.weight"][TOKENS] + weights["positions.weight"][POSITIONS + 2]
    torch.testing.assert_close(run(embedding), expected)


def test_adds_sines_then_cosines_of_positions_that_are_not_learned(context: BuildContext) -> None:
    settings = spec.Embedding(positions=spec.Positions(10, offset=2, waves=True))
    embedding, weights = made(settings, context)
    angles = (POSITIONS + 2)[:, None] * torch.tensor([1.0, 1e-4])
    expected = weights["embedding.weight"][TOKENS] + torch.cat((angles.sin(), angles.cos()), 1)
    assert weights.keys() == {"embedding.weight"}
    torch.testing.assert_close(run(embedding), expected)


def test_projects_a_narrow_table_before_positions_and_norm(context: BuildContext) -> None:
    settings = spec.Embedding(
        positions=spec.Positions(10), norm=spec.Norm(1e-5, kind="layer", bias=True), width=3
    )
    embedding, weights = made(settings, context)
    x = weights["embedding.weight"][TOKENS] @ weights["project_in.weight"].T
    x = x + weights["positions.weight"][POSITIONS]
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    expected = x * weights["embedding_norm.weight"] + weights["embedding_norm.bias"]
    torch.testing.assert_close(run(embedding), expected)


def test_its_name_has_no_suffix() -> None:
    context = BuildContext(torch.device("cpu"), torch.bfloat16, {"probe": "head.probe"}.__getitem__)
    layer = Learned((1, 2, 3), "probe", context)
    [(name, place)] = layer.weight_targets()
    place.copy_(torch.arange(6).view(1, 2, 3))
    assert name == "head.probe" and layer().dtype is torch.bfloat16
    assert layer().flatten().tolist() == [0, 1, 2, 3, 4, 5]
