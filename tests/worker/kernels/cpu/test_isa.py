"""Which level of instructions a CPU runs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from baton_worker.kernels.cpu.isa import LEVELS, IsaLevel, best, without_tiles


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_a_cpu_with_just_what_a_level_needs_runs_it(level: IsaLevel) -> None:
    assert best(level.needs) is level


def test_more_instructions_change_nothing() -> None:
    assert best(LEVELS[0].needs | {"amx_int8", "sse2"}) is LEVELS[0]


def test_without_tiles_the_next_level_is_the_best() -> None:
    assert LEVELS[0].has_tiles and not LEVELS[1].has_tiles
    assert best(without_tiles(LEVELS[0].needs)) is LEVELS[1]
    assert best(without_tiles(LEVELS[2].needs)) is LEVELS[2]


@pytest.mark.parametrize("missing", sorted(LEVELS[-1].needs))
def test_without_one_flag_of_the_last_there_is_none(missing: str) -> None:
    assert best(LEVELS[0].needs - {missing}) is None


def test_every_level_needs_what_the_next_one_does() -> None:
    assert all(better.needs > worse.needs for better, worse in pairwise(LEVELS))


def test_options_name_the_flags_that_a_level_needs() -> None:
    for level in LEVELS:
        switched = {option.removeprefix("-m").replace("-", "") for option in level.options}
        assert {flag.replace("_", "") for flag in level.needs} <= switched
