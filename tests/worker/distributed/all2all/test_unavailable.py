"""Ways that Baton knows by name only."""

from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton_worker.distributed.all2all import ALL2ALL
from baton_worker.distributed.communicator import SingleRank

HERE = ("allgather_reducescatter", "naive")


ELSEWHERE = {
    "pplx": "F06.23",
    "deepep_high_throughput": "F06.24",
    "deepep_low_latency": "F06.25",
    "mori": "F06.26",
    "flashinfer_all2allv": "F06.28",
}


def test_the_list_is_whole() -> None:
    assert {*ALL2ALL.names()} == {*HERE, *ELSEWHERE}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.row(row, refuses=True))
        for name, row in ELSEWHERE.items()
    ],
)
def test_what_is_not_called_here_says_what_to_use(name: str) -> None:
    with pytest.raises(SettingsError) as error:
        ALL2ALL.load(name)(SingleRank())
    assert error.value.message.startswith(f"--all2all-backend {name}: this needs ")
    assert error.value.message.endswith("Use allgather_reducescatter or naive.")
