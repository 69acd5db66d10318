"""Bytes per page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from baton_worker.kernels.pages import CODES
from baton_worker.kv import KVCache, bytes_per_page, window


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["auto", *CODES])
def test_bytes_are_those_of_the_tensors(kv_spec: Any, dtype: torch.dtype, kind: str) -> None:
    codes = CODES.get(kind)
    cache = KVCache(kv_spec, 7, 16, dtype=dtype, device=torch.device("cpu"), codes=codes)
    allocated = sum(layer.numel() * layer.element_size() for layer in cache.layers)
    assert 7 * bytes_per_page(kv_spec, 16, dtype, codes) == allocated


@pytest.mark.parametrize("codes", CODES.values(), ids=str)
def test_a_code_takes_a_byte_and_each_key_and_value_a_scale(kv_spec: Any, codes: Any) -> None:
    # Two heads of 8, and one of 16.
    assert bytes_per_page(kv_spec, 1, torch.bfloat16, codes) == 2 * 2 * (8 + 4) + 2 * (16 + 4)


def test_the_widest_window_counts_and_only_if_every_layer_has_one(kv_spec: Any) -> None:
    def windows(*numbers: int | None) -> Any:
        layers = tuple((replace(kv_spec.layers[0][0], window=n), None) for n in numbers)
        return replace(kv_spec, layers=layers)

    assert window(windows(4, 9, 6)) == 9
    assert window(windows(4, None, 6)) == 0
    assert window(replace(kv_spec, layers=((None, None), *windows(5).layers))) == 5
    assert window(replace(kv_spec, layers=((None, None),))) == 0
    assert window(kv_spec) == 0
