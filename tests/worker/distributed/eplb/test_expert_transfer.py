"""Weights of an expert from one rank to another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from baton_worker.distributed.eplb.expert_transfer import receive, send
from tests.fakes.threaded_ranks import together


@pytest.mark.row("F14.13")
def test_tensors_arrive_as_they_are() -> None:
    """Of any dtype, large ones, columns of others, and ones without a value."""
    given = {
        "up.panels": torch.randn(300, 64),
        "down.weight": torch.randn(8, 6).bfloat16()[:, ::2],
        "codes": torch.randn(4, 4).to(torch.float8_e4m3fn),
        "exceptions": torch.empty(0, dtype=torch.int32),
        "factor": torch.tensor(2.0),
    }

    def part(ranks: Any) -> dict[str, Tensor] | None:
        if ranks.rank:
            return receive(ranks, 0, torch.device("cpu"))
        send(ranks, given, 1)
        return None

    _, found = together(2, part)
    assert found is not None and [*found] == [*given]
    for name, tensor in given.items():
        assert found[name].dtype == tensor.dtype and found[name].is_contiguous()
        assert torch.equal(found[name].float(), tensor.float())
