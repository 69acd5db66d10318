"""When a packed weight is unpacked for a product, and how much of it at once; the products are in
`test_packed_linear`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from baton_worker.kernels import unpacked_product
from baton_worker.kernels.packed_weights import pack
from baton_worker.kernels.unpacked_product import rows_from
from baton_worker.platform.measured_table import MeasuredTable
from tests.support.worker import packable_weights

pytest.importorskip("triton", reason="triton is not installed: its kernels cannot be imported")
CPU = torch.device("cpu")


class Slow:
    """A clock by which unpacking once costs 300 rows' time, and codes three times the product."""

    def __init__(self) -> None:
        self.asked = list[int]()

    def seconds(self, step: Callable[[], object], times: int) -> float:
        assert isinstance(step, partial)
        self.asked.append(len(step.args[0]))
        unpacks = step.func is unpacked_product.product
        return 300.0 + self.asked[-1] if unpacks else self.asked[-1] * 1.5


def no_memory(step: object, times: int) -> float:
    raise torch.OutOfMemoryError


def test_from_how_many_rows_on_a_weight_is_unpacked_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    weights, like = pack([packable_weights.gptq(4, 16, 96, 32)], CPU), torch.empty(0)
    assert rows_from(weights, like) == unpacked_product.UNMEASURED
    monkeypatch.setattr(unpacked_product, "_table", None)
    monkeypatch.setattr(unpacked_product, "_clock", None)
    clock = Slow()
    for _ in range(2):
        table = MeasuredTable(tmp_path, "unpacked", "a card", (), ())
        unpacked_product.use(table, clock)
        with caplog.at_level("INFO", "baton_worker.kernels"):
            assert rows_from(weights, like) == 1024
    assert clock.asked == [rows for rows in unpacked_product.ROWS for _ in range(2)]
    assert "96 to 16, torch.float32 on a card: unpacked once from 1024 rows on" in caplog.text
    monkeypatch.setattr(clock, "seconds", no_memory)
    unpacked_product.use(MeasuredTable(tmp_path, "unpacked", "another", (), ()), clock)
    assert rows_from(weights, like) == unpacked_product.UNMEASURED
    assert "there is no memory to measure it" in caplog.text
    never = {
        name: dict.fromkeys(map(str, unpacked_product.ROWS), 1.0) for name in ("packed", "unpacked")
    }
    assert unpacked_product._first(never) == unpacked_product.NEVER


def test_columns_of_one_product_stay_in_the_cache_and_fill_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unpacked_product, "_device", lambda device: (132, 50 << 20))
    x = torch.empty(0, dtype=torch.bfloat16)
    found = [unpacked_product._columns(rows, 4096, x) for rows in (256, 1024, 8192)]
    assert found == [8448, 2176, 2176] and 2176 * 4096 * 2 < (50 << 20) / 2
