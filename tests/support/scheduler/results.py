"""Sequences whose first results are on the way, and what their results become."""

from __future__ import annotations

import numpy as np

from baton.protocol import Logprobs, Result, Sampling, Tokens
from baton.protocol.token_columns import pack
from baton_scheduler.events import Decision, Settled
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import World


def running(*gateways: str, max_tokens: int = 8) -> World:
    """One sequence per gateway, each with its first result on the way."""
    here = World()
    here.join("w", worker_info())
    for number, gateway in enumerate(gateways):
        here.submit([number], Sampling(max_tokens, seed=number), gateway)
    here.tick()
    here.run()
    return here


def next_result(here: World) -> Result:
    """The next result of the worker, taken from the way."""
    return here.peers["w"].results.popleft()


def settle(here: World, result: Result) -> list[Decision]:
    """Let a result arrive."""
    return here.apply(Settled("w", result))


def messages(decisions: list[Decision]) -> dict[str, Tokens]:
    """Tokens by gateway."""
    return {d.gateway: d.message for d in decisions if isinstance(d.message, Tokens)}


def logprobs(num_tokens: int) -> Logprobs:
    """Some log-probabilities of as many tokens."""
    every = range(num_tokens)
    values = np.array([-float(i) for i in every], "<f4").tobytes()
    return Logprobs(
        pack(every, "I"), values, pack(every, "I"), bytes([1] * num_tokens), pack(every), values
    )
