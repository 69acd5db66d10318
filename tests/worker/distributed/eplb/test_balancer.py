"""When experts move, and what is told about it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from baton.errors import SettingsError
from baton_worker.distributed.eplb.balancer import ExpertBalancer
from baton_worker.distributed.eplb.config import EplbConfig
from baton_worker.distributed.eplb.placement import Held
from baton_worker.kernels.moe.store import StackedStore
from tests.fakes.threaded_ranks import together

CPU = torch.device("cpu")


class Layer:
    """Experts of one number each, in place of `BalancedExperts`."""

    device, num_experts, expert_bytes, watch = CPU, 4, 40 << 20, None

    def __init__(self, rank: int, refusal: str | None = None, width: int = 1) -> None:
        self.held: Held = ((0, 1), (2, 3))
        self.rank, self._refusal = rank, refusal
        self.numbers = torch.tensor(self.held[rank])[:, None].repeat(1, width)

    @property
    def store(self) -> StackedStore:
        return StackedStore({"number": self.numbers}, refusal=self._refusal)

    def use(self, held: Held) -> None:
        """What has arrived is what belongs there."""
        self.held = held
        assert self.numbers[:, 0].tolist() == [*held[self.rank]]


def balancer(ranks: Any, layers: list[Layer], **settings: Any) -> ExpertBalancer:
    return ExpertBalancer(layers, ranks, EplbConfig(**settings))  # type: ignore[arg-type]


def run(balancer: ExpertBalancer, layers: list[Layer], steps: int) -> list[list[Held]]:
    """The placements in steps with 6 tokens for each of two experts of one rank."""
    found = list[list[Held]]()
    for _ in range(steps):
        balancer.step()
        found.append([layer.held for layer in layers])
        for layer in layers:
            if layer.watch is not None:
                layer.watch(torch.tensor([[0, 1]] * 6))
    return found


@pytest.mark.row("F14.12", "F14.13")
@pytest.mark.row("F06.29")
def test_layers_are_rearranged_one_after_the_other(caplog: pytest.LogCaptureFixture) -> None:
    """Every layer has two moves, of which a step has room for one; then nothing is left to do."""
    first, spread = ((0, 1), (2, 3)), ((0, 2), (1, 3))

    def part(ranks: Any) -> Any:
        layers = [Layer(ranks.rank), Layer(ranks.rank)]
        made = balancer(ranks, layers, window_size=8, step_interval=4)
        placements = run(made, layers, 12)
        return placements, made.news(), made.news()

    with caplog.at_level(logging.INFO):
        both = together(2, part)
    for placements, news, none in both:
        assert placements[:5] == [[first, first]] * 5
        assert placements[5:7] == [[spread, first]] * 2
        assert placements[7:] == [[spread, spread]] * 5
        assert none is None and news.rearrangements == 1
        assert (news.balancedness, news.mean_tokens, news.max_tokens) == (1.0, 96.0, 96.0)
    (line,) = [r.getMessage() for r in caplog.records if "rearranged" in r.getMessage()]
    assert "experts rearranged: 4 moved in 2 layers" in line
    assert "balancedness 1.00, it was 0.50" in line


@pytest.mark.row("F14.12")
def test_a_step_has_all_moves_if_steps_may_wait(caplog: pytest.LogCaptureFixture) -> None:
    def part(ranks: Any) -> Any:
        layers = [Layer(ranks.rank), Layer(ranks.rank)]
        settings = {"window_size": 8, "step_interval": 4, "use_async": False}
        logged = {"log_balancedness": True, "log_balancedness_interval": 3}
        made, progress = balancer(ranks, layers, **settings, **logged), list[str]()
        made._progressed = lambda: progress.append("no hang")
        placements = run(made, layers, 6)
        assert len(progress) == 3  # Of four moves the last one ends it.
        return placements

    with caplog.at_level(logging.INFO):
        for placements in together(2, part):
            assert [len(set(step)) for step in placements] == [1] * 6
            assert placements[3] != placements[4]
    (line,) = [r.getMessage() for r in caplog.records if "until" in r.getMessage()]
    assert line == (
        "experts: balancedness 0.5000, 36.00 tokens on a rank and 72.00 on the busiest of a layer, "
        "steps until rearrangement: 1"
    )


@pytest.mark.row("F14.13")
def test_experts_that_cannot_move_are_refused() -> None:
    for refusals, widths, why in (
        (["it is a pity"] * 2, [1, 1], "cannot change their rank: it is a pity. Leave it out."),
        ([None] * 2, [1, 2], "not stored in the same way on all ranks"),
    ):

        def part(ranks: Any) -> str:
            rank = ranks.rank
            with pytest.raises(SettingsError) as error:
                balancer(ranks, [Layer(rank, refusals[rank], widths[rank])])  # noqa: B023
            return error.value.message

        assert all(why in said for said in together(2, part))
