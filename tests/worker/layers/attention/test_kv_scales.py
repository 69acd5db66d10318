"""KV scales in a checkpoint."""

from __future__ import annotations

import pytest
import torch

from baton.errors import ModelError
from baton_worker.layers.attention.kv_scales import Scales
from baton_worker.layers.build_context import BuildContext

SITE = BuildContext(torch.device("cpu"), torch.bfloat16, lambda role: f"attention.{role}")


def filled(key: float, value: float) -> Scales:
    scales = Scales(2, SITE)
    for number, (_, place) in zip((key, value), scales.weight_targets(), strict=True):
        place.copy_(torch.tensor([number]))
    return scales


def test_each_number_has_its_name_and_stays_in_float32() -> None:
    scales = filled(0.1, 0.3)
    names = [name for name, _ in scales.weight_targets()]
    assert names == ["attention.key_scale", "attention.value_scale"]
    assert scales.pair == (float(torch.tensor(0.1)), float(torch.tensor(0.3)))


def test_keys_come_before_values_for_each_head() -> None:
    scales = filled(0.5, 2.0)
    scales.process_weights_after_loading()
    assert scales.each.tolist() == [[0.5], [0.5], [2.0], [2.0]]


@pytest.mark.parametrize("number", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_positive_number_is_refused(number: float) -> None:
    with pytest.raises(ModelError, match=r"attention\.key_scale"):
        filled(0.5, number).process_weights_after_loading()
