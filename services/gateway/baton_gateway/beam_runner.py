"""Runs beam search as scheduler requests of one token per beam and step.

The beams share prefixes in the prefix cache, so a step computes little more than its new tokens.
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
from baton_gateway.generation.request import BeamSearchOptions
from baton_gateway.generation.sequence import Sequence


class BeamStep(Sequence):
    """A sequence of one token that returns log-probabilities only, no text."""

    __slots__ = ()

    def extend(self, first: int, tokens: array[int], logprobs: Items[TokenLogprob]) -> None:
        """Record the token; repeated deliveries are ignored."""
        known = len(self.logprobs)
        Sequence.extend(self, first, tokens, logprobs)
        if len(self.logprobs) > known:
            self.stream.put(OutputDelta(self.choice, "", tokens, reason="length"))


class BeamRunner:
    """Requests the next-token alternatives for the beams of a request."""

    def __init__(self, scheduler: SchedulerClient, handle: Callable[[], int]) -> None:
        self._scheduler, self._handle = scheduler, handle
        self._numbers = count()

    async def fill(self, sequences: Items[Sequence], n: int, options: BeamSearchOptions) -> None:
        """Search for the choices of every prompt and write their logs. Raises `BatonError`.

        Args:
            sequences: the choices of a request, `n` per prompt.
        """
        firsts = sequences[::n]
        searches = [
            BeamSearch(options, frozenset(s.sampling.stop_ids), s.sampling.max_tokens)
            for s in firsts
        ]
        await self._run(searches, firsts)
        best = [beam for search in searches for beam in search.best(n)]
        for sequence, beam in zip(sequences, best, strict=True):
            sequence.write(beam.tokens, beam.logprobs, beam.reason)

    async def _run(self, searches: Items[BeamSearch], template: Items[Sequence]) -> None:
        """Advance the searches until all have finished. Raises `BatonError`.

        Args:
            template: one sequence per search; its beams inherit prompt, tenant and priority.
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
        # Beam steps inherit all other fields of the sequence.
        fields_of_beam = {field.name: getattr(like, field.name) for field in fields(like)}
        changed = {
            "handle": self._handle(),
            # Use distinct request ids: the scheduler may run sequences of one request in turn.
            "request": f"{like.request}/{next(self._numbers)}",
            "sampling": sampling,
            "stream": stream,
            "log": array("i", tokens),
            "logprobs": [],
            "prompt_logprobs": {},
            "mute": True,
        }
        return BeamStep(**fields_of_beam | changed)
