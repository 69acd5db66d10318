"""Bytes per page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from baton_worker.kernels.kv_codes import CODES
from baton_worker.kv_cache import KVCache, bytes_per_page
from baton_worker.spec import Sinks, Values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["auto", *CODES])
def test_bytes_are_those_of_the_tensors(kv_spec: Any, dtype: torch.dtype, kind: str) -> None:
    codes = CODES.get(kind)
    cache = KVCache(kv_spec, 7, 16, dtype=dtype, device=torch.device("cpu"), codes=codes)
    allocated = sum(layer.numel() * layer.element_size() for layer in cache.layers)
    assert 7 * bytes_per_page(kv_spec, 16, dtype, codes) == allocated


@pytest.mark.row("F04.16")
@pytest.mark.parametrize(("kind", "expected"), [("bf16", 2 * 2 * 40), ("fp8", 2 * (28 + 20))])
def test_a_value_that_is_narrower_than_its_key_takes_less(
    kv_spec: Any, kind: str, expected: int
) -> None:
    """Two heads, keys of 24 and values of 16: as in MiMo-V2, an eighth of what is padded."""
    codes, mixer = CODES.get(kind), kv_spec.layers[0][0]
    mixer = replace(mixer, head_dim=24, values=Values(16))
    spec = replace(kv_spec, layers=((mixer, kv_spec.layers[0][1]),))
    assert bytes_per_page(spec, 1, torch.bfloat16, codes) == expected
    cache = KVCache(spec, 3, 16, dtype=torch.bfloat16, device=torch.device("cpu"), codes=codes)
    assert sum(x.numel() * x.element_size() for x in cache.layers) == 3 * 16 * expected


def test_learned_keys_need_one_channel_more_of_a_value(kv_spec: Any) -> None:
    mixer = replace(kv_spec.layers[0][0], head_dim=24, values=Values(16), sinks=Sinks(3))
    assert mixer.kept_dim == 17 and replace(mixer, values=Values(23)).kept_dim is None


@pytest.mark.parametrize("codes", CODES.values(), ids=str)
def test_a_code_takes_a_byte_and_each_key_and_value_a_scale(kv_spec: Any, codes: Any) -> None:
    # Two heads of 8, and one of 16.
    assert bytes_per_page(kv_spec, 1, torch.bfloat16, codes) == 2 * 2 * (8 + 4) + 2 * (16 + 4)
