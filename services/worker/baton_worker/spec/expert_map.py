"""Placement of whole experts on expert-parallel ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from baton.errors import SettingsError

ELSEWHERE = -1
"""Local index of an expert on another rank."""


def linear(num_experts: int, size: int) -> tuple[int, ...]:
    """Contiguous experts per rank; the first ranks take the remainder."""
    each, more = divmod(num_experts, size)
    return tuple(rank for rank in range(size) for _ in range(each + (rank < more)))


def round_robin(num_experts: int, size: int) -> tuple[int, ...]:
    """Strided experts per rank: with grouped routing every rank holds experts of each group."""
    return tuple(expert % size for expert in range(num_experts))


PLACEMENTS: dict[str, Callable[[int, int], tuple[int, ...]]] = {
    "linear": linear,
    "round_robin": round_robin,
}
"""Functions from the numbers of experts and ranks to the rank of each expert."""


@dataclass(frozen=True, slots=True)
class ExpertMap:
    """The expert map as seen by one rank."""

    owners: tuple[int, ...]
    """The rank of each expert."""
    rank: int
    """This rank."""

    @classmethod
    def placed(cls, placement: str, num_experts: int, rank: int, size: int) -> ExpertMap:
        """Build by a placement in `PLACEMENTS`.

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
        """Global index of each local expert."""
        return tuple(expert for expert, rank in enumerate(self.owners) if rank == self.rank)

    @property
    def local(self) -> tuple[int, ...]:
        """The inverse: local index of each expert of the model, or `ELSEWHERE`."""
        numbers = {expert: number for number, expert in enumerate(self.here)}
        return tuple(numbers.get(expert, ELSEWHERE) for expert in range(len(self.owners)))
