"""Cells of suspects are halved, narrowed and freed."""

from __future__ import annotations

from baton.protocol import Sampling, Submit
from baton.protocol.token_columns import pack
from baton_scheduler.queueing.queue import fcfs
from baton_scheduler.sequence import Cell, Sequence, sequence
from baton_scheduler.suspects import SuspectSearch, split


def some(number: int) -> list[Sequence]:
    new = [Submit(n, f"r{n}", pack([1]), Sampling(9)) for n in range(number)]
    made = [sequence("g", submit, "", submit.handle, 0.0, fcfs) for submit in new]
    for each in made:
        each.mark = 1
    return made


def test_halves() -> None:
    assert [len(cell.members) for cell in split(some(5))] == [2, 3]
    assert [len(cell.members) for cell in split(some(1))] == [1]
    assert split([]) == []


def test_what_is_proven_frees_itself_and_halves_the_last_that_is_not() -> None:
    suspects = some(4)
    search = SuspectSearch("m", "both", split(suspects))
    search.narrow()
    assert [len(cell.members) for cell in search.cells] == [2, 2]
    search.cells[0].worker = "w"
    suspects[0].log.append(5)
    suspects[2].log.append(5)
    search.narrow()
    assert suspects[0].cell is None and suspects[2].cell is not None, "only a trial proves"
    suspects[1].ended = True
    search.narrow()
    assert [cell.members for cell in search.cells] == [[suspects[2]], [suspects[3]]]


def test_a_death_from_outside_frees_new_suspects_and_keeps_earlier_halves() -> None:
    suspects = some(4)
    search = SuspectSearch("m", "both", [Cell.of(suspects, fresh=True)], 7, suspects)
    search.clear()
    assert not search.cells and all(s.cell is None for s in suspects)
    search = SuspectSearch("m", "both", split(suspects), 7, suspects[:2])
    search.clear()
    assert len(search.cells) == 2 and not search.epoch
    search.in_flight = suspects[:2]
    assert search.bisect() is None
    assert [cell.members for cell in search.cells] == [[suspects[0]], [suspects[1]]]
    assert suspects[3].cell is None
