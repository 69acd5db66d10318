"""Chat completions and their chunks.

https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from baton.output_parsing import Arguments, CallStart, Content, Message, Piece, Reasoning
from baton_gateway.generation.choice import Choice
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.output import OutputDelta, Started
from baton_gateway.schemas.chat import ChatRequest
from baton_gateway.schemas.chat_responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    ChatToolCall,
    DeltaFunction,
    DeltaToolCall,
    FunctionCall,
)
from baton_gateway.schemas.usage import Usage
from baton_gateway.streaming.chunk_transcript import ChunkTranscript, count
from baton_gateway.streaming.head import Head
from baton_gateway.streaming.prediction_usage import PredictionUsage


class ChatWriter:
    """Writes choices as OpenAI's chat objects: one role chunk per choice, then its pieces."""

    text_field = "content"

    def __init__(self, body: ChatRequest, head: Head, vocabulary: Vocabulary) -> None:
        self._body, self._head, self._vocabulary = body, head, vocabulary
        self._top = body.top_logprobs or 0
        self.continuous_usage, self.num_choices = body.continuous_usage, body.n
        self.plain = not body.logprobs and not self.continuous_usage
        self.carries_tokens = body.logprobs or body.return_token_ids
        self.include_usage = body.include_usage

    def response(self, started: Started, choices: list[Choice]) -> ChatCompletion:
        """Return the complete response."""
        num_alternatives, ids = self._body.prompt_logprobs, self._body.return_token_ids
        scored = choices[0].prompt_logprobs or ()
        num_completion = sum(len(choice.tokens) for choice in choices)
        usage = self.usage(
            started,
            num_completion,
            [choice.cached for choice in choices],
            sum(choice.reasoning_tokens for choice in choices),
        )
        predictions = PredictionUsage(started.prediction)
        for number, choice in enumerate(choices):
            predictions.add(number, choice.tokens)
        predictions.report(usage)
        return ChatCompletion(
            **self._head.fields(),
            choices=[self._choice(i, choice) for i, choice in enumerate(choices)],
            usage=usage,
            prompt_logprobs=UNSET
            if num_alternatives is None
            else self._vocabulary.prompt_table(scored, num_alternatives),
            prompt_token_ids=list(started.prompts[0]) if ids else UNSET,
        )

    def _choice(self, index: int, choice: Choice) -> ChatChoice:
        with_logprobs = self._body.logprobs
        return ChatChoice(
            index=index,
            message=_message(choice.content, self._shown(choice.pieces)),
            finish_reason=choice.reason,
            stop_reason=choice.stop,
            logprobs=self._vocabulary.chat(choice.logprobs, self._top) if with_logprobs else None,
            token_ids=list(choice.tokens) if self._body.return_token_ids else UNSET,
        )

    def _shown(self, pieces: list[Piece]) -> list[Piece]:
        """Return the pieces that the client wants."""
        if self._body.include_reasoning:
            return pieces
        return [piece for piece in pieces if not isinstance(piece, Reasoning)]

    def transcript(self) -> ChunkTranscript:
        """Return a new transcript."""
        return ChunkTranscript(self)

    def opening(self, started: Started) -> Iterator[ChatChunk]:
        """Yield the role chunk of each choice; the first one has the ids of the prompt."""
        for index in range(self._body.n):
            chunk = self._chunk(ChatChunkChoice(index, ChatDelta(role="assistant", content="")))
            if index == 0 and self._body.return_token_ids:
                chunk.prompt_token_ids = list(started.prompts[0])
            yield chunk

    def text_of(self, delta: OutputDelta) -> str | None:
        """Return the content of a delta that has nothing else."""
        match delta.pieces:
            case ():
                return ""
            case (Content(text),):
                return text
        return None

    def chunks(
        self, started: Started, index: int, part: Choice, *, first: bool
    ) -> Iterator[ChatChunk]:
        """Yield a chunk per piece: the first one has the tokens, the last one the finish reason."""
        pieces = self._shown(part.pieces)
        deltas = [delta for piece in pieces if (delta := _delta(piece)) is not None]
        if not deltas and part.reason:
            deltas = [ChatDelta()]
        elif not deltas and self.carries_tokens and part.tokens:
            deltas = [ChatDelta(content="")]
        for number, delta in enumerate(deltas):
            choice = self._chunk_choice(index, delta, part if number == 0 else Choice())
            if part.reason and number == len(deltas) - 1:
                choice.finish_reason, choice.stop_reason = part.reason, part.stop
            yield self._chunk(choice)

    def empty_chunk(self, index: int) -> ChatChunk:
        """Return a chunk of a running choice with an empty content and no ids."""
        return self._chunk(self._chunk_choice(index, ChatDelta(content=""), Choice()))

    def usage_chunk(self, usage: Usage) -> ChatChunk:
        """Return the last chunk."""
        return ChatChunk(**self._head.fields(), choices=[], usage=usage)

    def usage(self, started: Started, completion: int, cached: list[int], reasoning: int) -> Usage:
        """Return the token counts."""
        return count(started, completion, cached, reasoning)

    def _chunk_choice(self, index: int, delta: ChatDelta, part: Choice) -> ChatChunkChoice:
        scored = self._body.logprobs and part.logprobs
        return ChatChunkChoice(
            index,
            delta,
            logprobs=self._vocabulary.chat(part.logprobs, self._top) if scored else None,
            token_ids=list(part.tokens) if self._body.return_token_ids else UNSET,
        )

    def _chunk(self, choice: ChatChunkChoice) -> ChatChunk:
        usage = None if self.include_usage else UNSET
        return ChatChunk(**self._head.fields(), choices=[choice], usage=usage)


def _message(content: str, pieces: list[Piece]) -> ChatMessage:
    read = Message()
    read.add(pieces)
    message = ChatMessage(content)
    if read.tool_calls:
        message.tool_calls = [
            ChatToolCall(call.id, FunctionCall(call.name, call.arguments))
            for call in read.tool_calls
        ]
    if read.reasoning is not None:
        message.reasoning = message.reasoning_content = read.reasoning
    if not message.content and (read.tool_calls or read.reasoning):
        message.content = None
    return message


def _delta(piece: Piece) -> ChatDelta | None:
    """Return the delta of a piece; None if a delta cannot express it."""
    match piece:
        case Content(text):
            return ChatDelta(content=text)
        case Reasoning(text):
            return ChatDelta(reasoning=text, reasoning_content=text)
        case CallStart(index, call_id, name):
            function = DeltaFunction(name, "")
            return ChatDelta(tool_calls=[DeltaToolCall(index, function, call_id, "function")])
        case Arguments(index, text):
            function = DeltaFunction(arguments=text)
            return ChatDelta(tool_calls=[DeltaToolCall(index, function)])
    return None
