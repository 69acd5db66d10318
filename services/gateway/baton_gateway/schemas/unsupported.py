"""Request fields that are forbidden or unsupported. They are rejected by name, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baton.errors import InvalidRequest
from baton_gateway.http.errors import invalid

FORBIDDEN = frozenset(
    {
        "allowed_local_media_path",
        "cache_hit_threshold",
        "chat_template",
        "custom_logit_processor",
        "custom_params",
        "data_parallel_rank",
        "ec_transfer_params",
        "kv_transfer_params",
        "logits_processors",
        "lora_path",
        "media_io_kwargs",
        "mm_payload",
        "mm_processor_kwargs",
        "prompt_embeds",
        "return_hidden_states",
        "return_mm_kwargs",
        "vllm_xargs",
    }
)
"""Fields with access to the system: code, files, tensors or addresses of other services."""

UNSUPPORTED = {
    "add_special_tokens": "Leave it out.",
    "audio": "Only text is produced.",
    "documents": "Send their texts in a message.",
    "enable_response_messages": "Send the request to /v1/chat/completions/render.",
    "function_call": "Use 'tool_choice'.",
    "functions": "Use 'tools'.",
    "guided_decoding_backend": "Leave it out.",
    "guided_whitespace_pattern": "White space between JSON tokens is bounded already.",
    "logprob_token_ids": "Ask for the most probable tokens.",
    "max_tokens_per_doc": "Use 'truncate_prompt_tokens'.",
    "moderation": "Leave it out.",
    "previous_input_messages": "Use 'previous_response_id'.",
    "repetition_detection": "Use 'repetition_penalty'.",
    "return_prompt_text": "Send the request to its path with /render at the end.",
    "return_token_offsets": "The 'logprobs' of a completion have offsets.",
    "routed_experts_prompt_start": "Leave it out.",
    "suffix": "Text is continued at its end only.",
    "thinking_token_budget": "Only chats have thinking.",
    "truncate_prompt_tokens": "Shorten the prompt before you send it.",
    "truncation_side": "Leave it out.",
    "watermarking": "Leave it out.",
    "web_search_options": "Leave it out.",
}
"""Unsupported fields that would change the answer, with alternatives."""

_TEMPLATE = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Names in `chat_template_kwargs` that would override the system's own variables."""


def refuse(fields: Mapping[str, Any], special: frozenset[str] = frozenset()) -> None:
    """Raise `InvalidRequest` for the first field that is forbidden or unsupported, and not
    `special` to this request."""
    for name, value in fields.items():
        if (name in FORBIDDEN and name not in special) or (
            name == "cache_salt" and not isinstance(value, str | None)
        ):
            raise forbidden(name)
        if value in (None, False, "", []):
            continue
        if name in UNSUPPORTED and name not in special:
            raise unsupported(name, UNSUPPORTED[name])


def refuse_template_names(kwargs: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` for template variables that only the system may set."""
    for name in kwargs:
        if name in _TEMPLATE or name.startswith("_"):
            raise forbidden(f"chat_template_kwargs.{name[:64]}")


def forbidden(name: str) -> InvalidRequest:
    """Error for a field that clients must not set."""
    return invalid(name, f"The parameter '{name}' is not allowed here.", "field_not_allowed")


def unsupported(name: str, advice: str) -> InvalidRequest:
    """Error for a field that is unsupported here."""
    return invalid(
        name,
        f"Unsupported parameter: '{name}' is not supported with this model. {advice}",
        "unsupported_parameter",
    )
