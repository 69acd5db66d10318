"""Cells of suspects are halved, narrowed and freed."""

from __future__ import annotations

from baton.protocol import Sampling, Submit
from baton.protocol.token_columns import pack
from baton_scheduler.queueing.queue import fcfs
from baton_scheduler.sequence import Cell, Sequence, sequence
from baton_scheduler.suspects import Inquiry, split


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
    inquiry = Inquiry("m", "both", split(suspects))
    inquiry.narrow()
    assert [len(cell.members) for cell in inquiry.cells] == [2, 2]
    inquiry.cells[0].worker = "w"
    suspects[0].log.append(5)
    suspects[2].log.append(5)
    inquiry.narrow()
    assert suspects[0].cell is None and suspects[2].cell is not None, "only a trial proves"
    suspects[1].ended = True
    inquiry.narrow()
    assert [cell.members for cell in inquiry.cells] == [[suspects[2]], [suspects[3]]]


def test_acquitted_of_the_first_death_they_are_free_of_a_later_one_they_stay_apart() -> None:
    suspects = some(4)
    inquiry = Inquiry("m", "both", [Cell.of(suspects, fresh=True)], 7, suspects)
    inquiry.acquit()
    assert not inquiry.cells and all(s.cell is None for s in suspects)
    inquiry = Inquiry("m", "both", split(suspects), 7, suspects[:2])
    inquiry.acquit()
    assert len(inquiry.cells) == 2 and not inquiry.epoch
    inquiry.accused = suspects[:2]
    assert inquiry.convict() is None
    assert [cell.members for cell in inquiry.cells] == [[suspects[0]], [suspects[1]]]
    assert suspects[3].cell is None
