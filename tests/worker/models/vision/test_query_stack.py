"""Queries are found by the number of states; the layers are tested with the models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.errors import ModelError
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.vision.query_stack import Queries

CPU = BuildContext(torch.device("cpu"), torch.float32)


def test_as_many_queries_as_states() -> None:
    tower: Any = SimpleNamespace(queries=(("a", 4), ("b", 1)), stack=SimpleNamespace(hidden=1))
    queries = Queries(tower, CPU)
    for table, number in zip(queries.tables, (7.0, 8.0), strict=True):
        assert isinstance(table.weight, torch.Tensor)
        table.weight.data.fill_(number)
    found = queries(torch.arange(5.0)[:, None], [(1, 1), (2, 2)])
    assert found[:, 0].tolist() == [0, 8, 1, 2, 3, 4, 7, 7, 7, 7]
    with pytest.raises(ModelError, match="There are no 6 queries"):
        queries(torch.zeros(6, 1), [(2, 3)])
