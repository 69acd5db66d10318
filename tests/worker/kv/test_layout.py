"""Bytes per page."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from baton_worker.kv import KVCache, bytes_per_page


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_are_those_of_the_tensors(kv_spec: Any, dtype: torch.dtype) -> None:
    cache = KVCache(kv_spec, 7, 16, dtype=dtype, device=torch.device("cpu"))
    allocated = sum(layer.numel() * layer.element_size() for layer in cache.layers)
    assert 7 * bytes_per_page(kv_spec, 16, dtype) == allocated
