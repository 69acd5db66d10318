"""The capabilities of a recipe, and the end of an instruction."""

from __future__ import annotations

import pytest

from baton_worker.pooling.recipe import PoolingRecipe, Take

PIECES = (b"<", b"|embed", b"|>", b"\n", b"|>\n", b"a", b"find ")


def recipe(**fields: object) -> PoolingRecipe:
    given = {"task": "embed", "take": "mean", "finish": "normalize", "width": 4}
    return PoolingRecipe(**given | fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("take", "whole", "reach"),
    [("last", False, "last"), ("mean", False, "every"), ("last", True, "whole")],
)
def test_reach(take: Take, whole: bool, reach: str) -> None:
    made = recipe(take=take, whole=whole)
    assert made.reach == reach == made.info(9, generates=False).reach


def test_the_shorter_length_counts() -> None:
    assert recipe(max_length=5).info(9, generates=False).max_model_len == 5
    assert recipe(max_length=50).info(9, generates=False).max_model_len == 9
    assert recipe().info(9, generates=True).max_model_len == 9


def test_steps_are_told() -> None:
    assert recipe(take="steps").info(9, generates=False).steps
    assert not recipe().info(9, generates=False).steps


@pytest.mark.parametrize(
    ("tokens", "skipped"),
    [
        ([6, 0, 1, 2, 3, 5, 5], 5),
        ([6, 0, 1, 4, 5], 4),
        ([0, 1, 4, 5, 0, 1, 4, 5], 3),
        ([5, 5], 0),
        ([0, 1, 4], 0),
    ],
)
def test_an_instruction_ends_with_its_mark(tokens: list[int], skipped: int) -> None:
    """However the mark is cut into tokens; and a text of nothing else is not skipped."""
    assert recipe(mark=b"<|embed|>\n", pieces=PIECES).skipped(tokens) == skipped
    assert recipe().skipped(tokens) == 0
