"""Converts deltas and choices to `vllm.grpc.engine.GenerateResponse`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from baton_gateway.generation.choice import Choice
from baton_gateway.generation.output import OutputDelta, Started, TokenLogprob


@dataclass(slots=True)
class ResponseWriter:
    """Writes the responses to one request, complete or streamed."""

    started: Started
    logprobs: int
    """Alternatives per token; -1 for no log-probabilities."""
    prompt_logprobs: int
    """Number of alternatives per prompt token; see `logprobs`."""
    open: set[int] = field(default_factory=set)
    """Choices that are running."""
    _begun: set[int] = field(default_factory=set)

    def streamed(self, delta: OutputDelta) -> Iterator[pb.GenerateResponse]:
        """Yield the chunk of a delta and, at the end of its choice, the complete message.

        Counts and log-probabilities are those of the delta: clients add them up.
        """
        first = delta.choice not in self._begun
        self._begun.add(delta.choice)
        if delta.tokens or first:
            yield pb.GenerateResponse(chunk=self._chunk(delta, first=first))
        if delta.reason is not None:
            self.open.discard(delta.choice)
            yield self.complete(delta.choice, delta, delta.reason)

    def complete(self, index: int, part: OutputDelta | Choice, reason: str) -> pb.GenerateResponse:
        """Return the last response of a choice."""
        complete = pb.GenerateComplete(
            output_ids=part.tokens,
            finish_reason=reason,
            prompt_tokens=len(self.started.prompts[0]),
            completion_tokens=len(part.tokens),
            cached_tokens=part.cached,
            output_logprobs=self._output(part.logprobs),
            input_logprobs=self._input(part.prompt_logprobs),
            index=index,
        )
        if isinstance(part.stop, int):
            complete.matched_token_id = part.stop
        elif part.stop is not None:
            complete.matched_stop_str = part.stop
        return pb.GenerateResponse(complete=complete)

    def _chunk(self, delta: OutputDelta, *, first: bool) -> pb.GenerateStreamChunk:
        return pb.GenerateStreamChunk(
            token_ids=delta.tokens,
            prompt_tokens=len(self.started.prompts[0]),
            completion_tokens=len(delta.tokens),
            cached_tokens=delta.cached,
            output_logprobs=self._output(delta.logprobs),
            input_logprobs=self._input(delta.prompt_logprobs) if first else None,
            index=delta.choice,
        )

    def _output(self, scored: tuple[TokenLogprob, ...]) -> pb.OutputLogProbs | None:
        if self.logprobs < 0 or not scored:
            return None
        return pb.OutputLogProbs(
            token_logprobs=[entry.logprob for entry in scored],
            token_ids=[entry.token for entry in scored],
            top_logprobs=[_top(entry, self.logprobs) for entry in scored if self.logprobs],
        )

    def _input(self, scored: tuple[TokenLogprob | None, ...] | None) -> pb.InputLogProbs | None:
        if self.prompt_logprobs < 0 or not scored:
            return None
        most = self.prompt_logprobs
        return pb.InputLogProbs(
            token_logprobs=[
                pb.InputTokenLogProb(value=None if entry is None else entry.logprob)
                for entry in scored
            ],
            token_ids=self.started.prompts[0],
            top_logprobs=[
                pb.TopLogProbs() if entry is None else _top(entry, most) for entry in scored if most
            ],
        )


def _top(scored: TokenLogprob, most: int) -> pb.TopLogProbs:
    top = scored.top[:most]
    return pb.TopLogProbs(values=[p for _, p in top], token_ids=[token for token, _ in top])
