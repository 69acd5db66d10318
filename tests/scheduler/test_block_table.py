"""Pages of consecutive blocks."""

from __future__ import annotations

import pytest

from baton.protocol.token_columns import unpack
from baton_scheduler.block_table import (
    NONE,
    BlockTable,
    column,
    flat,
)


def test_a_table_knows_its_blocks() -> None:
    table = BlockTable(3, [7, 8, 9])
    assert table.end == 6 and table.at(4) == 8
    with pytest.raises(AssertionError):
        table.at(2)


@pytest.mark.parametrize(
    ("block", "left"),
    [
        (0, BlockTable(3, [7, 8, 9])),
        (4, BlockTable(4, [8, 9])),
        (6, BlockTable(6, [])),
        (8, BlockTable(8, [])),
    ],
)
def test_what_lies_before_a_block_is_left_out(block: int, left: BlockTable) -> None:
    assert BlockTable(3, [7, 8, 9]).since(block) == left


def test_on_the_wire_tables_are_equally_long() -> None:
    tables = [BlockTable(0, [4, 5, 6]), BlockTable(2, [9])]
    assert unpack(column(tables), "I").tolist() == [4, 5, 6, NONE, NONE, 9]
    assert flat(tables) == [4, 5, 6, 9]
