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

    held: tuple[tuple[int, ...], ...]
    """By rank the experts that it holds. Several ranks may hold the same one: then each computes
    some of its visits."""
    rank: int
    """This rank."""

    @classmethod
    def placed(
        cls, placement: str, num_experts: int, rank: int, size: int, redundant: int = 0
    ) -> ExpertMap:
        """Build by a placement in `PLACEMENTS`. The first `redundant` experts have a replica; if
        there are more, all experts have one before one has two.

        Raises:
            SettingsError: there are fewer experts than ranks, or a rank would have an expert twice.
        """
        if num_experts < size:
            raise SettingsError(
                f"--enable-expert-parallel: {num_experts} experts cannot be dealt out to {size} "
                "ranks. Choose fewer ranks."
            )
        if redundant > num_experts * (size - 1):
            raise SettingsError(
                f"--eplb-config: with {redundant} redundant experts beside {num_experts} a rank "
                f"would hold one of them twice. {num_experts * (size - 1)} are possible on {size} "
                "ranks."
            )
        if redundant and placement != "linear":
            raise SettingsError(
                f"--expert-placement-strategy {placement}: redundant experts are placed by load, "
                "and begin as linear places them. Leave it out, or num_redundant_experts in "
                "--eplb-config."
            )
        owners = PLACEMENTS[placement](num_experts + redundant, size)
        slots = [(number % num_experts, owner) for number, owner in enumerate(owners)]
        by_rank = (tuple(expert for expert, at in slots if at == owner) for owner in range(size))
        return cls(tuple(by_rank), rank)

    @property
    def here(self) -> tuple[int, ...]:
        """Global index of each local expert."""
        return self.held[self.rank]

    @property
    def num_experts(self) -> int:
        """Experts of the model, each of which some rank holds."""
        return 1 + max(max(experts) for experts in self.held)

    @property
    def local(self) -> tuple[int, ...]:
        """The inverse: local index of each expert of the model, or `ELSEWHERE`."""
        numbers = {expert: number for number, expert in enumerate(self.here)}
        return tuple(numbers.get(expert, ELSEWHERE) for expert in range(self.num_experts))
