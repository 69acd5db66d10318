"""A step is shared by every layer, so none may change it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from baton_worker.layers.forward_context import ForwardContext


def test_is_frozen() -> None:
    step = ForwardContext(torch.zeros(1, dtype=torch.int64), {}, {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.slots = torch.ones(1)  # type: ignore[misc]
