"""FlashInfer's plan inputs, and the reuse of its wrappers."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import torch

from baton_worker.attention.backends.flashinfer_plan import Rows, Wrappers, workspace


def test_a_wrapper_is_lent_to_one_plan_at_a_time() -> None:
    wrappers = Wrappers(object)
    first, second = wrappers.acquire(), wrappers.acquire()
    assert first.wrapper is not second.wrapper
    freed = id(first.wrapper)
    del first
    gc.collect()
    assert id(wrappers.acquire().wrapper) == freed


def test_the_last_page_of_a_row_is_as_full_as_its_keys_say(problem: Any) -> None:
    rows = Rows.of(problem([(1, 3), (5, 0), (1, 8)], page_size=4).batch, np.asarray([0, 2]))
    assert rows.lengths.tolist() == [4, 9] and rows.last(4).tolist() == [4, 1]
    assert rows.page_starts.tolist() == [0, 1, 4] and rows.query_starts.tolist() == [0, 1, 2]


def test_all_wrappers_of_a_device_share_a_workspace() -> None:
    here = workspace(torch.device("cpu"))
    assert here is workspace(torch.device("cpu")) and here.dtype is torch.uint8
    assert here.numel() == 128 << 20
