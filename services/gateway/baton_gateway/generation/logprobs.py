"""Converts log-probabilities from wire columns to the OpenAI and vLLM response formats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from baton.protocol import Logprobs, PromptLogprobs
from baton.protocol.token_columns import unpack, unpack_floats
from baton_gateway.generation.output import TokenLogprob

_LEAST = -9999.0
"""OpenAI's value for a probability of zero, since JSON has no infinity."""


def by_row(columns: Logprobs | None, ids: Sequence[int]) -> dict[int, TokenLogprob]:
    """Convert columns to one entry per described row; `ids[row]` is the sampled or prompt token."""
    if columns is None:
        return {}
    top_ids, top_values = unpack(columns.top_ids), unpack_floats(columns.top_values)
    entries: dict[int, TokenLogprob] = {}
    at = 0
    for row, chosen, rank, count in zip(
        unpack(columns.rows, "I"),
        unpack_floats(columns.chosen),
        unpack(columns.ranks, "I"),
        unpack(columns.counts, "B"),
        strict=True,
    ):
        pairs = zip(top_ids[at : at + count], top_values[at : at + count], strict=True)
        top = tuple((token, max(value, _LEAST)) for token, value in pairs)
        entries[row] = TokenLogprob(ids[row], max(chosen, _LEAST), rank, top)
        at += count
    return entries


def of_prompt(part: PromptLogprobs, prompt: Sequence[int]) -> dict[int, TokenLogprob]:
    """Return the entries by prompt position."""
    entries = by_row(part.columns, prompt[part.start :])
    return {part.start + row: entry for row, entry in entries.items()}


class ChatToken(msgspec.Struct):
    """One token of `choices[].logprobs.content`."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatToken] | msgspec.UnsetType = msgspec.UNSET


class ChatLogprobs(msgspec.Struct):
    """`choices[].logprobs` of the chat API."""

    content: list[ChatToken]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """`choices[].logprobs` of the completions API."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def then(self, later: CompletionLogprobs) -> CompletionLogprobs:
        """Return these entries followed by `later`."""
        return CompletionLogprobs(
            self.tokens + later.tokens,
            self.token_logprobs + later.token_logprobs,
            self.top_logprobs + later.top_logprobs,
            self.text_offset + later.text_offset,
        )


class PromptToken(msgspec.Struct):
    """One alternative of vLLM's `prompt_logprobs`, keyed by its token id."""

    logprob: float
    rank: int
    decoded_token: str


PromptTable = list[dict[str, PromptToken] | None]


class Vocabulary:
    """Converts token ids to text for log-probabilities."""

    def __init__(self, pieces: tuple[bytes, ...], *, as_ids: bool = False) -> None:
        """
        Args:
            as_ids: tokens of log-probabilities are `token_id:<id>` in place of texts.
        """
        self._pieces, self._as_ids = pieces, as_ids

    def piece(self, token: int) -> bytes:
        """Return the raw bytes of a token; empty for an id without a piece."""
        return self._pieces[token] if 0 <= token < len(self._pieces) else b""

    def text(self, token: int) -> str:
        """Return a token as text, with replacement characters for bytes that are not UTF-8."""
        return self.piece(token).decode("utf-8", "replace")

    def name(self, token: int) -> str:
        """Return a unique string for a token; OpenAI's `bytes:` notation when it is not UTF-8."""
        if self._as_ids:
            return _id_text(token)
        piece = self.piece(token)
        try:
            return piece.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)

    def chat(self, entries: Iterable[TokenLogprob], top: int) -> ChatLogprobs:
        """Return the chat API's format with `top` alternatives per token."""
        return ChatLogprobs([self._chat_token(entry, top) for entry in entries])

    def _chat_token(self, entry: TokenLogprob, top: int) -> ChatToken:
        shown = _id_text if self._as_ids else self.text
        best = [
            ChatToken(shown(token), value, list(self.piece(token)))
            for token, value in entry.top[:top]
        ]
        piece = list(self.piece(entry.token))
        return ChatToken(shown(entry.token), entry.logprob, piece, best)

    def completion(
        self, entries: Sequence[TokenLogprob], top: int, offsets: Iterable[int]
    ) -> CompletionLogprobs:
        """Return the completions API's format; `offsets` are the text offsets of the tokens."""
        return CompletionLogprobs(
            tokens=[self.name(entry.token) for entry in entries],
            token_logprobs=[entry.logprob for entry in entries],
            top_logprobs=[self._best(entry, top) for entry in entries],
            text_offset=list(offsets),
        )

    def echo(
        self,
        prompt: Sequence[int],
        entries: Sequence[TokenLogprob | None],
        top: int,
        text: str,
        silent: frozenset[int],
    ) -> CompletionLogprobs:
        """Return prompt tokens in the completions API's format; ids in `silent` have no text."""
        scored = [entry for entry in entries if entry is not None]
        body = self.completion(scored, top, [])
        missing: list[None] = [None] * (len(prompt) - len(scored))
        return CompletionLogprobs(
            tokens=[self.name(token) for token in prompt],
            token_logprobs=[*missing, *body.token_logprobs],
            top_logprobs=[*missing, *body.top_logprobs],
            text_offset=self._offsets(prompt, text, silent),
        )

    def _offsets(self, prompt: Sequence[int], text: str, silent: frozenset[int]) -> list[int]:
        pieces = [b"" if token in silent else self.piece(token) for token in prompt]
        # Some vocabularies prefix the first word with a space that the text does not have.
        characters = -(b"".join(pieces).startswith(b" ") and not text.startswith(" "))
        offsets = []
        for piece in pieces:
            offsets.append(max(0, characters))
            # Count a character at its first byte; UTF-8 continuation bytes are 0b10xxxxxx.
            characters += sum(byte & 0xC0 != 0x80 for byte in piece)
        return offsets

    def _best(self, entry: TokenLogprob, top: int) -> dict[str, float]:
        """Return the best alternatives and, as OpenAI does, the chosen token."""
        pairs = (*entry.top[:top], (entry.token, entry.logprob))
        return {self.name(token): value for token, value in pairs}

    def prompt_table(self, entries: Sequence[TokenLogprob | None], top: int) -> PromptTable:
        """Return vLLM's `prompt_logprobs`: per token, alternatives by id; the first is null."""
        return [None if entry is None else self._prompt_row(entry, top) for entry in entries]

    def _prompt_row(self, entry: TokenLogprob, top: int) -> dict[str, PromptToken]:
        row = {str(entry.token): PromptToken(entry.logprob, entry.rank, self.text(entry.token))}
        for rank, (token, value) in enumerate(entry.top[:top], start=1):
            row[str(token)] = PromptToken(value, rank, self.text(token))
        return row


def _id_text(token: int) -> str:
    return f"token_id:{token}"
