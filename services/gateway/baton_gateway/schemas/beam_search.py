"""Beam search fields of vLLM, and the fields that are incompatible with them.

Fields that would change the probabilities or inspect text during the search are rejected, not
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baton_gateway.generation.request import BeamSearchOptions
from baton_gateway.http.errors import invalid, wrong_type

MAX_WIDTH = 16
_OPTIONS = ("beam_width", "length_penalty", "early_stopping")
"""Fields that require `use_beam_search`."""
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
    """Validate `early_stopping`: true, false or "never"."""
    if isinstance(value, bool) or value == "never":
        return value
    raise wrong_type("early_stopping", "a boolean or 'never'", value)


def beams(fields: Mapping[str, Any], neutral: Mapping[str, Any]) -> BeamSearchOptions | None:
    """Return the beam search options of a request, or None. Raises `InvalidRequest`.

    Args:
        fields: the validated fields of the request.
        neutral: the value of each field that has no effect.
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
    """Return whether a `response_format` has no constraint."""
    return bool(value == {"type": "text"})


def _excluded(name: str) -> Exception:
    return invalid(
        name,
        f"Unsupported value: '{name}' cannot be used with beam search. Leave it out.",
        "unsupported_value",
    )
