"""Text completions and their chunks.

https://platform.openai.com/docs/api-reference/completions
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from msgspec import UNSET, UnsetType

from baton_gateway.catalogue import ModelInfo
from baton_gateway.generation.choice import Choice
from baton_gateway.generation.logprobs import CompletionLogprobs, PromptTable, Vocabulary
from baton_gateway.generation.output import OutputDelta, Started
from baton_gateway.schemas.completion_responses import Completion, CompletionChoice
from baton_gateway.schemas.completions import CompletionRequest
from baton_gateway.schemas.usage import Usage
from baton_gateway.streaming.chunk_transcript import ChunkTranscript, count
from baton_gateway.streaming.head import Head


class CompletionWriter:
    """Writes choices as OpenAI's completion objects.

    With `echo`, a choice begins with its prompt: text, tokens and log-probabilities. With
    `max_tokens` 0, the single token that the model must sample is dropped.
    """

    text_field = "text"

    def __init__(
        self,
        body: CompletionRequest,
        head: Head,
        vocabulary: Vocabulary,
        model_info: ModelInfo,
        echoes: list[str],
    ) -> None:
        """`echoes`: text of each prompt, empty without `echo`."""
        self._body, self._head, self._vocabulary = body, head, vocabulary
        self._echoes = echoes
        self._silent = model_info.special_ids if body.skip_special_tokens else frozenset()
        self.continuous_usage, self.num_choices = body.continuous_usage, body.n
        is_text = body.logprobs is None and body.max_tokens != 0
        self.plain = is_text and not self.continuous_usage
        self.carries_tokens = body.logprobs is not None or body.return_token_ids
        self.include_usage = body.include_usage

    def response(self, started: Started, choices: list[Choice]) -> Completion:
        """Return the complete response."""
        best = enumerate(self._best(choices))
        num_completion = sum(len(choice.tokens) for choice in choices)
        return Completion(
            **self._head.fields(),
            choices=[self._choice(started, i, self._shown(c), first=True) for i, c in best],
            usage=self.usage(started, num_completion, [choice.cached for choice in choices], 0),
        )

    def _best(self, choices: list[Choice]) -> list[Choice]:
        """Return the `n` most probable candidates per prompt, best first; unsorted when there are
        only `n`."""
        n, candidates = self._body.n, self._body.candidates
        if n == candidates:
            return choices
        groups = [choices[i : i + candidates] for i in range(0, len(choices), candidates)]
        return [best for group in groups for best in sorted(group, key=_rank)[:n]]

    def transcript(self) -> ChunkTranscript:
        """Return a new transcript."""
        return ChunkTranscript(self)

    def opening(self, started: Started) -> Iterable[Completion]:
        """Return nothing: the first chunk of a choice already has text."""
        return ()

    def text_of(self, delta: OutputDelta) -> str | None:
        """Return the text of a delta, including thinking and calls."""
        return delta.text

    def chunks(
        self, started: Started, index: int, part: Choice, *, first: bool
    ) -> Iterator[Completion]:
        """Yield the chunk of a part; the first one has the fields of the prompt."""
        shown = self._shown(part)
        echoes = first and self._body.echo
        if shown.text or shown.reason or echoes or (self.carries_tokens and shown.tokens):
            yield self._chunk(self._choice(started, index, shown, first=first))

    def empty_chunk(self, index: int) -> Completion:
        """Return a chunk of a running choice with an empty text and no ids."""
        choice = CompletionChoice(index, "")
        if self._body.return_token_ids:
            choice.token_ids = []
        return self._chunk(choice)

    def usage_chunk(self, usage: Usage) -> Completion:
        """Return the last chunk."""
        return Completion(**self._head.fields(), choices=[], usage=usage)

    def usage(self, started: Started, completion: int, cached: list[int], reasoning: int) -> Usage:
        """Return the token counts of what is shown."""
        return count(started, completion if self._body.max_tokens else 0, cached)

    def _shown(self, choice: Choice) -> Choice:
        """Return the visible part of a choice or delta."""
        if self._body.max_tokens:
            return choice
        return Choice(prompt_logprobs=choice.prompt_logprobs, reason=choice.reason and "length")

    def _chunk(self, choice: CompletionChoice) -> Completion:
        usage = None if self.include_usage else UNSET
        return Completion(**self._head.fields(), choices=[choice], usage=usage)

    def _choice(
        self, started: Started, index: int, part: Choice, *, first: bool
    ) -> CompletionChoice:
        """Convert a choice or a part of it; prompt fields are in the first part only."""
        number = index // self._body.n
        prompt, echo = started.prompts[number], self._echoes[number]
        ids = self._body.return_token_ids
        return CompletionChoice(
            index,
            (echo if first else "") + part.text,
            part.reason,
            part.stop,
            logprobs=self._logprobs(part, prompt if first and self._body.echo else None, echo),
            prompt_logprobs=self._prompt_table(part) if first else UNSET,
            token_ids=list(part.tokens) if ids else UNSET,
            prompt_token_ids=list(prompt) if ids and first else UNSET,
        )

    def _prompt_table(self, part: Choice) -> PromptTable | UnsetType:
        num_alternatives = self._body.prompt_logprobs
        if num_alternatives is None:
            return UNSET
        return self._vocabulary.prompt_table(part.prompt_logprobs or (), num_alternatives)

    def _logprobs(
        self, part: Choice, prompt: Sequence[int] | None, echo: str
    ) -> CompletionLogprobs | None:
        top = self._body.logprobs
        if top is None:
            return None
        offsets = [len(echo) + start for start in part.starts]
        body = self._vocabulary.completion(part.logprobs, top, offsets)
        if prompt is None:
            return body
        scored = part.prompt_logprobs or ()
        return self._vocabulary.echo(prompt, scored, top, echo, self._silent).then(body)


def _rank(choice: Choice) -> float:
    """Sort key: negative sum of the log-probabilities of all tokens."""
    return -math.fsum(scored.logprob for scored in choice.logprobs)
