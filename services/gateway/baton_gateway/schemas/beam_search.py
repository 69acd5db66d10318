"""Beam search as a client asks for it: vLLM's fields, and what cannot go with them.

A search follows what the model finds probable. Whatever would change that, or would look at text
on the way, is refused rather than ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baton_gateway.generation.request import BeamSearchOptions
from baton_gateway.http.errors import invalid, wrong_type

MAX_WIDTH = 16
_OPTIONS = ("beam_width", "length_penalty", "early_stopping")
"""Fields that mean nothing without `use_beam_search`."""
FIELDS = frozenset({"use_beam_search", *_OPTIONS})
_EXCLUDED = (
    "allowed_token_ids",
    "bad_words",
    "best_of",
    "echo",
    "frequency_penalty",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "logit_bias",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "processors",
    "prompt_logprobs",
    "repetition_penalty",
    "response_format",
    "stop",
    "structured_outputs",
    "top_k",
    "top_p",
    "typical_p",
)


def early(value: object) -> bool | str:
    """`true`, `false` or "never"."""
    if isinstance(value, bool) or value == "never":
        return value
    raise wrong_type("early_stopping", "a boolean or 'never'", value)


def beams(fields: Mapping[str, Any], neutral: Mapping[str, Any]) -> BeamSearchOptions | None:
    """The search that a request asks for, or None. Raises `InvalidRequest`.

    Args:
        fields: the validated fields of the request.
        neutral: the value of each field that changes nothing.
    """
    if not fields["use_beam_search"]:
        for name in _OPTIONS:
            if fields[name] != neutral[name]:
                raise invalid(name, f"'{name}' needs 'use_beam_search' to be true.")
        return None
    for name in _EXCLUDED:
        if name in fields and fields[name] != neutral[name] and not _is_text(fields[name]):
            raise _excluded(name)
    if fields["temperature"] not in (0.0, 1.0):
        raise _excluded("temperature")
    width = fields["beam_width"] or fields["n"]
    if not fields["n"] <= width <= MAX_WIDTH:
        raise invalid(
            "beam_width",
            f"Invalid 'beam_width': expected a value from 'n', which is {fields['n']}, to "
            f"{MAX_WIDTH}.",
        )
    return BeamSearchOptions(width, fields["length_penalty"], fields["early_stopping"])


def _is_text(value: Any) -> bool:
    """A `response_format` that asks for nothing."""
    return bool(value == {"type": "text"})


def _excluded(name: str) -> Exception:
    return invalid(
        name, f"Unsupported value: '{name}' cannot be used with beam search.", "unsupported_value"
    )
