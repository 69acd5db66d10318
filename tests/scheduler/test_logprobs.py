"""Log-probability columns when only some rows are kept."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from baton.errors import WireError
from baton.protocol import Logprobs
from baton.protocol.token_columns import pack, unpack, unpack_floats
from baton_scheduler.logprobs import check, select


def columns() -> Logprobs:
    """Entries for tokens 0, 2 and 3 with 2, 0 and 1 alternatives."""
    return Logprobs(
        rows=pack([0, 2, 3], "I"),
        chosen=np.array([-0.5, -1.0, -1.5], "<f4").tobytes(),
        ranks=pack([1, 2, 3], "I"),
        counts=bytes([2, 0, 1]),
        top_ids=pack([10, 11, 30]),
        top_values=np.array([-0.5, -0.75, -0.25], "<f4").tobytes(),
    )


def test_kept_entries_move_with_their_tokens_and_alternatives() -> None:
    kept = select(columns(), np.array([-1, 0, 1, 2]))
    assert kept is not None
    assert unpack(kept.rows, "I").tolist() == [1, 2]
    assert unpack_floats(kept.chosen).tolist() == [-1.0, -1.5]
    assert unpack(kept.ranks, "I").tolist() == [2, 3]
    assert kept.counts == bytes([0, 1])
    assert unpack(kept.top_ids).tolist() == [30]
    assert unpack_floats(kept.top_values).tolist() == [-0.25]


def test_nothing_left_is_none() -> None:
    assert select(columns(), np.array([-1, 0, -1, -1])) is None


@pytest.mark.parametrize(
    "change",
    [{"ranks": b""}, {"top_ids": pack([1])}, {"counts": bytes([2, 0, 2])}, {"rows": b""}],
)
def test_columns_that_disagree_are_refused(change: dict[str, bytes]) -> None:
    with pytest.raises(WireError):
        check(msgspec.structs.replace(columns(), **change), 4)


def test_an_entry_without_a_token_is_refused() -> None:
    check(columns(), 4)
    with pytest.raises(WireError, match="not in the message"):
        check(columns(), 3)
