"""Responses of the Responses API: one choice as output items.

https://platform.openai.com/docs/api-reference/responses/object
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from baton_gateway.generation.choice import Choice
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.output import OutputDelta, Started
from baton_gateway.schemas.responses.chat import ResponseChat
from baton_gateway.schemas.responses.response import Response
from baton_gateway.streaming.head import Head
from baton_gateway.streaming.response_transcript import ResponseTranscript


class ResponseWriter:
    """Writes the one choice of a request as a response."""

    def __init__(
        self,
        body: ResponseChat,
        head: Head,
        vocabulary: Vocabulary,
        encrypt: Callable[[str], str] | None = None,
    ) -> None:
        """
        Args:
            encrypt: encrypts thinking; None if that was not requested.
        """
        self._body, self.head, self._vocabulary = body, head, vocabulary
        self._encrypt = encrypt

    def response(self, started: Started, choices: list[Choice]) -> Response:
        """Return the complete response: the same as the events of a stream result in."""
        [choice] = choices
        transcript = self.transcript()
        deque(transcript.opening(started), maxlen=0)
        deque(transcript.events(_delta(choice)), maxlen=0)
        deque(transcript.ending(), maxlen=0)
        return transcript.response

    def transcript(self) -> ResponseTranscript:
        """Return a new transcript."""
        return ResponseTranscript(self._body, self.head, self._vocabulary, self._encrypt)


def _delta(choice: Choice) -> OutputDelta:
    """Return a complete choice as one delta."""
    return OutputDelta(
        choice=0,
        text=choice.text,
        tokens=choice.tokens,
        logprobs=choice.logprobs,
        reason=choice.reason,
        stop=choice.stop,
        cached=choice.cached,
        pieces=tuple(choice.pieces),
        reasoning_tokens=choice.reasoning_tokens,
    )
