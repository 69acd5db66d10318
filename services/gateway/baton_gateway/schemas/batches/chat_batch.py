"""Request of vLLM's batch of chats: several conversations with the same parameters."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, model_validator

from baton.errors import InvalidRequest
from baton_gateway.schemas.chat import ChatRequest
from baton_gateway.schemas.chat_messages import check_messages
from baton_gateway.schemas.field_access import array_of
from baton_gateway.schemas.unsupported import unsupported

Conversation = list[dict[str, Any]]


def _conversations(value: object) -> list[Conversation]:
    conversations = enumerate(array_of(value, "messages"))
    return [_conversation(messages, f"messages[{i}]") for i, messages in conversations]


def _conversation(value: object, param: str) -> Conversation:
    """Return the checked messages of one conversation, with errors that name it."""
    try:
        return check_messages(value)
    except InvalidRequest as error:
        place = error.param or "messages"
        own = param + place.removeprefix("messages")
        message = error.message.replace(place, own)
        raise InvalidRequest(message, code=error.code, param=own) from error


class ChatBatchRequest(ChatRequest):
    """POST /v1/chat/completions/batch: the fields of a chat, with a list of conversations."""

    messages: Annotated[list[Conversation], BeforeValidator(_conversations)]  # type: ignore[assignment]

    @model_validator(mode="after")
    def _check_batch(self) -> Self:
        given = {
            "stream": self.stream,
            "n": self.n > 1,
            "use_beam_search": self.beams is not None,
            "prompt_logprobs": self.prompt_logprobs is not None,
        }
        for name, is_given in given.items():
            if is_given:
                raise unsupported(name, "Send each conversation in a request of its own.")
        return self

    @property
    def chats(self) -> list[ChatRequest]:
        """The requests of the conversations, in order."""
        return [self.model_copy(update={"messages": messages}) for messages in self.messages]
