"""Transforms between the head's product and the logits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Table
from baton_worker.layers.lm_head import Head

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def asked(settings: spec.Head, context: BuildContext) -> tuple[Tensor, dict[str, Tensor]]:
    head = Head(settings, 4, 10, context)
    weights = {name: rows.copy_(torch.randn(rows.shape)) for name, rows in head.weight_targets()}
    copies = {name: rows.clone() for name, rows in weights.items()}
    head.process_weights_after_loading()
    with torch.inference_mode():
        return head(X), copies


def test_bias_scale_and_softcap_come_in_this_order(context: BuildContext) -> None:
    logits, weights = asked(spec.Head(bias=True, scale=0.5, softcap=1.5), context)
    plain = 0.5 * (X @ weights["head.weight"].T + weights["head.bias"])
    torch.testing.assert_close(logits, 1.5 * torch.tanh(plain / 1.5))


def test_unit_rows_divide_each_row_by_its_length(context: BuildContext) -> None:
    logits, weights = asked(spec.Head(unit_rows=True), context)
    torch.testing.assert_close(logits, X @ F.normalize(weights["head.weight"], dim=1).T)


@pytest.mark.parametrize("bias", [False, True])
def test_a_tied_head_loads_at_most_a_bias(context: BuildContext, bias: bool) -> None:
    table = Table(10, 4, "embedding", context)
    head = Head(spec.Head(tied=True, bias=bias), 4, 10, context, tied_to=table)
    assert [name for name, _ in head.weight_targets()] == (["head.bias"] if bias else [])
    assert head.weight is table.weight
