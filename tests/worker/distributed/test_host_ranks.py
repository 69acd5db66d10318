"""Ranks on CPUs: what several processes compute together is what one computes."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baton_worker.distributed import host_ranks
from baton_worker.distributed.host_ranks import HostRanks
from baton_worker.distributed.process_groups import join
from tests.fakes.collectives import SHAPE, mine, pair_of, take_part

ROOT = Path(__file__).parent.parent.parent.parent


def expected(rank: int, size: int) -> list[Tensor]:
    """The results of one rank, computed by one process."""
    total = mine(0)
    for other in range(1, size):
        total = total + mine(other)
    scattered = mine(0) + rank
    for other in range(1, size):
        scattered = scattered + (mine(other) + rank)
    rounded = torch.stack([mine(r, torch.bfloat16).float() for r in range(size)])
    return [
        total,
        total[2:3],
        rounded.sum(0).bfloat16().float(),
        scattered,
        *(mine(r).T.contiguous() for r in range(size)),
        2 * mine(rank),
        *(mine(r) for r in range(size)),
        *(mine(r) + rank for r in pair_of(rank, size)),
        *(mine(r) for r in range(size)),
        torch.full(SHAPE, float(sum(range(rank + 1)))),
        torch.tensor([10**12 + r for r in range(size)]).float(),
    ]


@pytest.mark.row("F14.01")
@pytest.mark.row("F14.02")
@pytest.mark.parametrize("size", [2, 3])
def test_processes_compute_together_what_one_computes(tmp_path: Path, size: int) -> None:
    """Sum, scattered sum, gather (also while something is computed), exchange, broadcast, send and
    receive. Every sum has the bits of one taken in the order of ranks, whatever else is summed."""
    meeting = tmp_path / "meeting"
    command = [sys.executable, "-m", "tests.fakes.collectives", str(meeting)]
    others = [
        subprocess.Popen([*command, str(rank), str(size)], cwd=ROOT) for rank in range(1, size)
    ]
    ranks = join(meeting, 0, size, torch.device("cpu"))
    assert isinstance(ranks, HostRanks) and (ranks.rank, ranks.size) == (0, size)
    results = [take_part(ranks)]
    for rank in range(1, size):
        results.append([torch.empty_like(tensor) for tensor in expected(rank, size)])
        for tensor in results[-1]:
            ranks.receive(tensor, rank)
    assert [process.wait() for process in others] == [0] * (size - 1)
    for rank, found in enumerate(results):
        for ours, theirs in zip(found, expected(rank, size), strict=True):
            assert torch.equal(ours, theirs)


def test_tensors_arrive_in_the_order_in_which_they_are_expected(tmp_path: Path) -> None:
    connections = list[object]()  # They stay until the other rank has read from them.

    def rank(number: int) -> list[float]:
        ranks = join(tmp_path / "meeting", number, 2, torch.device("cpu"))
        connections.append(ranks)
        if number:
            for value in (1.0, 2.0):
                ranks.begin_send(torch.full((3,), value), 0)()
            return []
        tensors = [torch.zeros(3), torch.zeros(3)]
        arrivals = [ranks.begin_receive(tensor, 1) for tensor in tensors]
        for arrival in arrivals:
            arrival.wait()
            assert arrival.is_completed()
        return [tensor[0].item() for tensor in tensors]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(rank, range(2))) == [[1.0, 2.0], []]


def test_who_waits_for_a_rank_that_has_died_is_told(tmp_path: Path) -> None:
    """What one that was killed as it met others has left is removed; what another one uses is
    not."""
    meeting = tmp_path / "meeting"
    left, used = tmp_path / "r-left", tmp_path / "r-used"
    left.mkdir()
    (left / "0").touch()
    used.mkdir()
    with host_ranks._locked(used):
        meet_and_lose(meeting)
    assert set(tmp_path.iterdir()) <= {used, meeting}


def meet_and_lose(meeting: Path) -> None:
    code = (
        "import sys, pathlib; from baton_worker.distributed.host_ranks import HostRanks;"
        "ranks = HostRanks(pathlib.Path(sys.argv[1]), 1, 2); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(meeting)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE)
    ranks = HostRanks(meeting, 0, 2)
    other.communicate()  # It ends once both have met.
    assert other.returncode == 0
    with pytest.raises(ConnectionError):
        ranks.all_reduce(torch.zeros(3))
