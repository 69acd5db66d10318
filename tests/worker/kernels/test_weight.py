"""What every quantised weight can do, against the floats that it means."""

from __future__ import annotations

import pytest
import torch

from tests.support.worker.quantized_weights import WEIGHTS, K, N


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_shard_means_that_part_of_the_floats(name: str) -> None:
    weight = WEIGHTS[name]()
    floats = weight.dequantise()
    assert weight.shape == floats.shape == (N, K) and 0 < weight.nbytes < floats.nbytes // 2
    for rows in (slice(0, 8), slice(7, 21), slice(1, 20, 2), slice(20, 99), torch.tensor([9, 2])):
        assert torch.equal(weight[rows].dequantise(), floats[rows])
    step = weight.column_multiple
    assert K % step == 0
    for first, count in ((0, K // 2), (K // 2, K // 2), (256, 256)):
        assert first % step == count % step == 0
        part = weight.columns(first, count)
        assert part.shape == (N, count)
        assert torch.equal(part.dequantise(), floats[:, first : first + count])


@pytest.mark.parametrize("name", WEIGHTS)
def test_padding_is_rows_of_zeros(name: str) -> None:
    weight = WEIGHTS[name]()
    padded = weight[3:9].padded(5)
    assert padded.shape == (11, K)
    assert torch.equal(padded.dequantise()[:6], weight.dequantise()[3:9])
    assert (padded.dequantise()[6:] == 0).all()
    assert torch.equal(weight.padded(0).dequantise(), weight.dequantise())


@pytest.mark.parametrize("name", WEIGHTS)
def test_on_another_device_it_is_the_same(name: str) -> None:
    weight = WEIGHTS[name]()
    half = weight.columns(K // 2, K // 2).to(torch.device("cpu"))
    assert torch.equal(half.dequantise(), weight.dequantise()[:, K // 2 :])


def test_columns_are_cut_between_groups() -> None:
    found = {name: make().column_multiple for name, make in WEIGHTS.items()}
    assert found == {
        **{"blocks": 256, "unread": 32, "gptq": 8, "three bits": 32, "act-order": 8},
        **{"fp8": 1, "fp8 rows": 1, "fp8 blocks": 64, "nvfp4": 16, "mxfp4": 32},
        **{"rotated": 64, "int8": 32},
    }
