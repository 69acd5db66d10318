"""Where the experts of a mixture are, when every rank has some of them, whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from baton.errors import SettingsError

ELSEWHERE = -1
"""The number here of an expert that another rank has."""


def linear(num_experts: int, size: int) -> tuple[int, ...]:
    """Neighbours together; where they do not come out even, the first ranks have one more."""
    each, more = divmod(num_experts, size)
    return tuple(rank for rank in range(size) for _ in range(each + (rank < more)))


def round_robin(num_experts: int, size: int) -> tuple[int, ...]:
    """Neighbours apart: where experts come in groups of which a token visits few, every rank has
    some of each group."""
    return tuple(expert % size for expert in range(num_experts))


PLACEMENTS: dict[str, Callable[[int, int], tuple[int, ...]]] = {
    "linear": linear,
    "round_robin": round_robin,
}
"""Experts and ranks to the rank of each expert."""


@dataclass(frozen=True, slots=True)
class ExpertMap:
    """Which rank has each expert, as one of the ranks sees it."""

    owners: tuple[int, ...]
    """The rank of each expert."""
    rank: int
    """Whose numbers are meant by "here"."""

    @classmethod
    def placed(cls, placement: str, num_experts: int, rank: int, size: int) -> ExpertMap:
        """By a row of `PLACEMENTS`.

        Raises:
            SettingsError: there are fewer experts than ranks.
        """
        if num_experts < size:
            raise SettingsError(
                f"--enable-expert-parallel: {num_experts} experts cannot be dealt out to {size} "
                "ranks. Choose fewer ranks."
            )
        return cls(PLACEMENTS[placement](num_experts, size), rank)

    @property
    def here(self) -> tuple[int, ...]:
        """Number in the model of each expert that is here."""
        return tuple(expert for expert, rank in enumerate(self.owners) if rank == self.rank)

    @property
    def local(self) -> tuple[int, ...]:
        """The inverse: number here of each expert of the model, or `ELSEWHERE`."""
        numbers = {expert: number for number, expert in enumerate(self.here)}
        return tuple(numbers.get(expert, ELSEWHERE) for expert in range(len(self.owners)))
