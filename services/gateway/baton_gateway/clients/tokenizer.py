"""Client of the tokenizers: encodes text, decodes ids, returns the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import json

from baton.errors import ServerFault
from baton.protocol import (
    Detokenize,
    Detokenized,
    EncodeChat,
    Encoded,
    EncodePair,
    EncodeText,
    TokenizerInfo,
    Vocabulary,
    VocabularyBytes,
)
from baton.protocol.base import RpcRequest
from baton.protocol.packed_tokens import PackedTokens
from baton.protocol.token_columns import pack
from baton_gateway.clients.connection import Pool
from baton_gateway.clients.rpc import RpcClient
from baton_gateway.generation.request import ChatPrompt, EncodedPrompt, PairPrompt, TextPrompt

Answer = Encoded | Detokenized | VocabularyBytes


class TokenizerClient(RpcClient[Answer]):
    """Sends requests to the tokenizers. Those of one model form a group: any of them can reply."""

    def __init__(self, pool: Pool, timeout: float) -> None:
        super().__init__(pool, timeout, "tokenizer")
        self._groups: dict[str, TokenizerGroup] = {}

    @property
    def infos(self) -> list[TokenizerInfo]:
        """Properties of the connected tokenizers."""
        servers = (connection.server for connection in self._pool.ready())
        return [s.tokenizer for s in servers if s is not None and s.tokenizer is not None]

    def of(self, model: str) -> TokenizerGroup:
        """The tokenizers of a model."""
        return self._groups.setdefault(model, TokenizerGroup(self, model))


class TokenizerGroup:
    """The tokenizers of one model: they encode text, decode ids and know the vocabulary."""

    def __init__(self, client: TokenizerClient, model: str) -> None:
        self._client, self._model = client, model
        self._pieces: tuple[bytes, ...] = ()
        self._tokens: dict[str, int] = {}

    async def encode(
        self, prompt: ChatPrompt | TextPrompt, limit: int, trace: str = ""
    ) -> PackedTokens:
        """Return the ids of a prompt; more than `limit` ids mean that the prompt is longer."""
        return (await self.encode_prompt(prompt, limit, trace)).ids

    async def encode_prompt(
        self, prompt: ChatPrompt | TextPrompt | PairPrompt, limit: int, trace: str = ""
    ) -> EncodedPrompt:
        """Like `encode`, with everything else that the tokenizer reports about the prompt."""
        answer = await self._call(lambda id: _encode(id, prompt, limit, self._model), trace)
        if not isinstance(answer, Encoded):
            raise _unexpected(answer)
        return EncodedPrompt(PackedTokens(answer.tokens), answer.second, answer.tail)

    async def token(self, text: str) -> int:
        """Return the id of a text that is one token; -1 if it is several. Cached."""
        if text not in self._tokens:
            ids = await self.encode(TextPrompt(text, add_special=False), len(text.encode()))
            self._tokens[text] = ids[0] if len(ids) == 1 else -1
        return self._tokens[text]

    async def detokenize(self, tokens: Sequence[int], skip_special: bool) -> str:
        """Return the text of a complete list of ids."""
        column = pack(tokens)
        answer = await self._call(lambda id: Detokenize(id, column, skip_special))
        if not isinstance(answer, Detokenized):
            raise _unexpected(answer)
        return answer.text

    async def pieces(self) -> tuple[bytes, ...]:
        """Return the raw bytes of every token. Cached, since a model has one vocabulary."""
        if not self._pieces:
            answer = await self._call(Vocabulary)
            if not isinstance(answer, VocabularyBytes):
                raise _unexpected(answer)
            self._pieces = answer.pieces
        return self._pieces

    async def _call(self, build: Callable[[int], RpcRequest], trace: str = "") -> Answer:
        return await self._client.call(build, trace, self._model)


def _encode(
    number: int, prompt: ChatPrompt | TextPrompt | PairPrompt, limit: int, model: str
) -> RpcRequest:
    if isinstance(prompt, PairPrompt):
        sides = json.encode(prompt.query), json.encode(prompt.document)
        return EncodePair(number, *sides, limit=limit, model=model, keep=prompt.keep)
    if isinstance(prompt, TextPrompt):
        return EncodeText(
            number,
            prompt.text,
            add_special=prompt.add_special,
            limit=limit,
            model=model,
            keep=prompt.keep,
        )
    return EncodeChat(
        number,
        prompt.messages,
        tools=prompt.tools,
        kwargs=prompt.kwargs,
        add_generation_prompt=prompt.add_generation_prompt,
        continue_final_message=prompt.continue_final_message,
        limit=limit,
        model=model,
    )


def _unexpected(answer: Answer) -> ServerFault:
    return ServerFault(f"The tokenizer answered with {type(answer).__name__}.")
