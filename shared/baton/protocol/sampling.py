"""Sampling parameters and finish reasons."""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error"]


class Thinking(msgspec.Struct, frozen=True, array_like=True):
    """Thinking before the constrained part of an output, between two tags."""

    opener: str
    closer: str
    opened: bool
    """The prompt ends with the opener. Otherwise the output may begin with it, or not think at
    all."""
    opener_id: int = -1
    """Token id of the opener; -1 if it is not one token."""
    closer_id: int = -1
    budget: int = -1
    """Maximum tokens of thinking, after which the closer is forced. -1: any number."""


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """Grammar that the output must match. The gateway has validated it by compiling it once."""

    kind: Literal[
        "json_object",
        "json_schema",
        "regex",
        "choice",
        "grammar",
        "tool_calls",
        "structural_tag",
        "text",
    ]
    """"tool_calls" is a grammar that the gateway built from a format and tools. "text" matches
    anything: only the thinking before it is constrained."""
    source: str
    """The schema, pattern or grammar as text; a JSON array for "choice"."""
    compact: bool = False
    """Fixed JSON white space: ", " between items, ": " after property names, no other."""
    thinking: Thinking | None = None
    """Thinking that may precede it; None: the grammar is that of the complete output."""


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """Sampling parameters of one sequence. The gateway has validated them; workers do not.

    Randomness is counter-based: the uniform number that selects output token i is a pure function
    of (seed, i), so there is no generator state.
    """

    max_tokens: int
    """Maximum number of output tokens, clipped by the gateway to the context length."""
    seed: int = 0
    """Unsigned 64 bits."""
    temperature: float = 1.0
    """0 means greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means off."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    min_tokens: int = 0
    """No stop id is sampled before this many tokens."""
    stop_ids: tuple[int, ...] = ()
    """Ids that end the sequence; the model's end-of-sequence ids unless the client ignores them."""
    logprobs: int = -1
    """-1: none; n >= 0: log-probabilities of the sampled token and the n most probable."""
    prompt_logprobs: int = -1
    """As `logprobs`, for every prompt token."""
    typical_p: float = 1.0
    """Locally typical sampling (Meister et al. 2022, arXiv:2202.00666); 1 means off."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences whose last token is not sampled after the ones before it."""
    allowed_ids: tuple[int, ...] = ()
    """Only these ids are sampled; empty means all."""
    grammar: Grammar | None = None
    processors: dict[str, str] = msgspec.field(default_factory=dict)
    """Registered name of a logits processor -> its argument as JSON."""
    num_speculative_tokens: int = -1
    """Maximum draft tokens per step, 0 for none; -1: the worker's number. The output does not
    depend on it."""
