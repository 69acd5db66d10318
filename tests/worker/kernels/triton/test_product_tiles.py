"""Tiles by the number of rows, and by what a device has."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest
import torch


@pytest.fixture(scope="module")
def tiles(interpreted: None) -> ModuleType:
    return import_module("baton_worker.kernels.triton.product_tiles")


def test_the_first_row_of_a_table_is_used(tiles: ModuleType) -> None:
    x = torch.empty(0, dtype=torch.bfloat16)
    for count, rows in {1: 16, 16: 16, 17: 64, 255: 64, 256: 128}.items():
        assert tiles.of_rows(count, x, packed=True) == tiles.PACKED[rows][0]
    for rows, row in tiles.PACKED_VISITS.items():
        assert tiles.of_visits(rows, x, packed=True) == row[0]
    assert not tiles.of_rows(256, x, packed=False).left
    # Numbers of 32 bits need twice the room, and are not multiplied so.
    assert tiles.of_rows(256, x.float(), packed=True) == tiles.Tile(64, 64)
    assert tiles.of_visits(64, x.float(), packed=True) == tiles.Tile(64, 64)


def test_weights_are_left_where_a_group_of_warps_multiplies(
    tiles: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    tile = tiles.Tile(64, 64, left=True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (device.index, 0))
    for major, left in ((8, False), (9, True), (10, False)):
        x = SimpleNamespace(dtype=torch.bfloat16, device=torch.device("cuda", major))
        assert tiles.fitted(tile, x).left is left
