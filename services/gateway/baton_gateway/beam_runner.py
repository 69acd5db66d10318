"""Beam search as requests to the scheduler: one token per beam and step, continued from its log.

The prefix cache holds what the beams share, so a step computes little more than its new tokens.
All prompts of a request step together.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import fields
from itertools import count

from baton.protocol import Sampling
from baton_gateway.clients.scheduler import SchedulerClient
from baton_gateway.generation.beam_search import BeamSearch
from baton_gateway.generation.output import OutputDelta, TokenLogprob
from baton_gateway.generation.output_queue import OutputQueue
from baton_gateway.generation.sequence import Sequence


class BeamStep(Sequence):
    """A sequence of one token, of which only the log-probabilities are wanted: it has no text."""

    __slots__ = ()

    def extend(self, first: int, tokens: array[int], logprobs: Items[TokenLogprob]) -> None:
        """The token has come, perhaps once more."""
        known = len(self.logprobs)
        Sequence.extend(self, first, tokens, logprobs)
        if len(self.logprobs) > known:
            self.stream.put(OutputDelta(self.choice, "", tokens, reason="length"))


class BeamRunner:
    """Asks what may follow the beams of a request."""

    def __init__(self, scheduler: SchedulerClient, handle: Callable[[], int]) -> None:
        self._scheduler, self._handle = scheduler, handle
        self._numbers = count()

    async def run(self, searches: Items[BeamSearch], template: Items[Sequence]) -> None:
        """Advance the searches until all are over. Raises `BatonError`.

        Args:
            template: one sequence per search, whose prompt, payer and priority its beams have.
        """
        while active := [(s, t) for s, t in zip(searches, template, strict=True) if not s.finished]:
            stream = OutputQueue(sum(len(search.running) for search, _ in active))
            probes = [
                [self._probe(like, beam.tokens, search.alternatives, stream)
                 for beam in search.running]
                for search, like in active
            ]  # fmt: skip
            await self._ask([probe for group in probes for probe in group], stream)
            for (search, like), group in zip(active, probes, strict=True):
                like.cached = like.cached or group[0].cached
                search.advance([probe.logprobs[0] for probe in group])

    async def _ask(self, probes: list[BeamStep], stream: OutputQueue) -> None:
        try:
            await self._scheduler.submit(probes)
            async for _ in stream:
                pass
        finally:
            self._scheduler.forget(probes)
            await self._scheduler.abort(probes)

    def _probe(
        self, like: Sequence, tokens: tuple[int, ...], alternatives: int, stream: OutputQueue
    ) -> BeamStep:
        sampling = Sampling(
            max_tokens=len(tokens) + 1, temperature=0.0, logprobs=alternatives, seed=0
        )
        # Whatever else is said of the request holds for its probes.
        given = {field.name: getattr(like, field.name) for field in fields(like)}
        changed = {
            "handle": self._handle(),
            # Of two sequences of one request the scheduler would let the second wait.
            "request": f"{like.request}/{next(self._numbers)}",
            "sampling": sampling,
            "stream": stream,
            "log": array("i", tokens),
            "logprobs": [],
            "prompt_logprobs": {},
            "mute": True,
        }
        return BeamStep(**given | changed)
