"""Translates a `Grammar` to the dialect of Lark that llguidance reads.

The gateway validates the text (`problem`), the worker compiles the same text (`translate`), so the
two cannot disagree. llguidance needs no torch, so neither does the gateway.
https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from random import Random
from string import ascii_lowercase, digits
from typing import Any

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, StructTag, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark

from baton.protocol import Grammar
from baton.structured_output.json_schema import Schema, SchemaError, rewrite

CPU_SECONDS = 0.25
"""CPU time limit of a compilation in seconds; the worker spends the same time again."""
WALK_SECONDS = 0.5
"""CPU time limit of all random outputs of a trial, in seconds."""
_WALKS, _STEPS = 4, 64
_STEP_FUEL, _START_FUEL = 200_000, 1_000_000
"""Lexer expressions that a step and a compilation may build in a trial; see `limits`."""
_RESERVE = 10
_MAX_ITEMS = 2000
_MAX_FREE_ITEMS = 500
"""Alternatives that a parser may keep open: of a JSON schema, and of a client's own grammar, whose
ambiguity makes the cost of a step cubic in them."""
_HEAD = '%llguidance {"no_forcing": true}\n'
"""Disables forced tokens, so that the mask allows every tokenization of forced text."""
_EXPRESSIONS = ("json_object", "json_schema", "regex", "choice")
_SPACE = {"whitespace_pattern": r"[ \n\r\t]{0,16}"}
"""Bounds the white space between JSON tokens, so that a model cannot generate it endlessly."""
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_GBNF = re.compile(r"^\s*[A-Za-z0-9_-]+\s*::=", re.MULTILINE)
_HEADER = re.compile(r"^\s*%llguidance.*$", re.MULTILINE)
_COMPLEX = re.compile(r"too (complex|many|large|deep|big)|limit|fuel|nested|max is", re.IGNORECASE)
_BETTER = {
    r"^oneOf constraints are not supported.*": (
        "the branches of 'oneOf' may overlap: use 'anyOf', or tell them apart by type, by 'const', "
        "or by a required property"
    ),
    r"^Unknown format: (.*)": r"the 'format' \1 cannot be honoured here",
    r"^Resource .(.*?). is not present .*": r"the '$schema' \1 is not known here",
    r"^patternProperty regexes (.*) are not disjoint": r"the 'patternProperties' \1 overlap",
    r"^lexer (error: too many expressions constructed|precomputation failed).*": (
        f"its repetitions and optional parts need more than {_STEP_FUEL} lexer expressions for one "
        "token: use smaller counts, or fewer of them"
    ),
    r"^Parser Error: Current row has \d+ items; max is (\d+).*": (
        r"more than \1 of its alternatives are open at one place: make it less ambiguous"
    ),
    r"^parser error: Too many items \(limit \d+; ff_tokens.*": (
        "the text that it forces is endless or too long: give every recursive rule a way out"
    ),
    r"^parser error: Too many items \(limit (\d+).*": (
        r"one token opens more than \1 of its alternatives: make it less ambiguous"
    ),
    r"^Failed to generate regex for (\w+) range: .*": (
        "'minimum', 'exclusiveMinimum', 'maximum' or 'exclusiveMaximum' is too large a number"
    ),
}
"""Pattern of an engine error -> a message that tells the client which keyword to change."""
_UNSUPPORTED = re.compile(r"look-?around|look-(ahead|behind)|backreference", re.IGNORECASE)


class GrammarError(ValueError):
    """A grammar that cannot be expressed in the engine's language."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Reason for rejecting a grammar."""

    code: str
    """"grammar_too_complex", "unsupported_value" or "invalid_value"."""
    message: str


def limits(kind: str = "", *, trial: bool = False) -> LLParserLimits:
    """Limits on the work of one matcher step, in the engine's units, not in time.

    A worker has ten times the fuel of a trial, so what passed the trial does not run out of it
    with a larger vocabulary or further into the output.
    """
    reserve = 1 if trial else _RESERVE
    return LLParserLimits(
        verbose_errors=False,
        step_lexer_fuel=reserve * _STEP_FUEL,
        initial_lexer_fuel=reserve * _START_FUEL,
        max_items_in_row=_MAX_FREE_ITEMS if kind == "grammar" else _MAX_ITEMS,
    )


def translate(grammar: Grammar) -> str:
    """Translate a grammar to llguidance's dialect of Lark. Raises `GrammarError`."""
    match grammar.kind:
        case "json_object":
            return _HEAD + "start: %json " + _json({"type": "object"} | _style(grammar))
        case "json_schema":
            schema = msgspec.json.decode(grammar.source)
            return _HEAD + "start: %json " + _json(_schema(schema) | _style(grammar))
        case "regex":
            wrapped = msgspec.json.decode(LLMatcher.grammar_from_regex(grammar.source))
            return _HEAD + str(wrapped["grammars"][0]["lark_grammar"])
        case "choice":
            choices: list[str] = msgspec.json.decode(grammar.source)
            return _HEAD + "start: " + " | ".join(map(_json, choices))
        case "grammar":
            return _HEAD + _lark(grammar.source)
        case "tool_calls":
            return _HEAD + grammar.source
        case "structural_tag":
            return _HEAD + _tags(msgspec.json.decode(grammar.source), _style(grammar))
        case "text":
            raise GrammarError("any text is no grammar")


def expression(grammar: Grammar) -> str | None:
    """The grammar as one expression of Lark, for use as an alternative in another grammar; None if
    it has rules of its own. Raises `GrammarError`."""
    if grammar.kind not in _EXPRESSIONS:
        return None
    return translate(grammar).removeprefix(_HEAD).removeprefix("start: ")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _style(grammar: Grammar) -> Schema:
    return {"x-guidance": _COMPACT if grammar.compact else _SPACE}


def _schema(schema: Schema) -> Schema:
    try:
        return rewrite(schema)
    except SchemaError as error:
        raise GrammarError(str(error)) from error


def _lark(source: str) -> str:
    if not _GBNF.search(source):
        return source
    try:
        return _HEADER.sub("", gbnf_to_lark(source))
    except Exception as error:
        # The converter raises bare exceptions for invalid grammars.
        raise GrammarError(str(error) or type(error).__name__) from error


def _tags(value: dict[str, Any], style: Schema) -> str:
    """Grammar of free text in which each trigger starts one of the tags; `begin` starts with a
    trigger."""
    tags = []
    for tag in value["structures"]:
        trigger = next((t for t in value["triggers"] if tag["begin"].startswith(t)), None)
        if trigger is None:
            raise GrammarError(f"No trigger begins '{tag['begin'][:40]}'.")
        schema = _schema(tag["schema"]) | style
        tags.append(StructTag(trigger=trigger, begin=tag["begin"], grammar=schema, end=tag["end"]))
    return _HEADER.sub("", StructTag.to_grammar(tags, assume_special=False))


def _tokens() -> tuple[bytes, ...]:
    """Tokens of the vocabulary: every byte, pairs and runs of letters and digits as in real
    vocabularies, and the end."""
    letters = ascii_lowercase + digits + " "
    pairs = (a + b for a in letters for b in letters)
    runs = (letter * size for letter in letters for size in (4, 8, 16))
    single = (bytes([i]) for i in range(256))
    return (*single, *(text.encode() for text in (*pairs, *runs)), b"<end>")


class _TrialTokens:
    """Vocabulary for validation."""

    tokens = _tokens()
    eos_token_id, bos_token_id = len(tokens) - 1, None
    special_token_ids = (eos_token_id,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def problem(grammar: Grammar) -> Problem | None:
    """Compile a grammar and follow it for some steps. Returns None if it is valid.

    May need much time and memory: call it where both are limited.
    """
    begin = time.process_time()
    try:
        text = translate(grammar)
    except GrammarError as error:
        return _problem(str(error))
    tokenizer = LLTokenizer(TokenizerWrapper(_TrialTokens()))
    allowed = limits(grammar.kind, trial=True)
    matcher = LLMatcher(tokenizer, text, limits=allowed, log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        return _problem(matcher.get_error())
    if time.process_time() - begin > CPU_SECONDS:
        return Problem("grammar_too_complex", f"it takes more than {CPU_SECONDS} s to compile")
    return _walk(matcher)


def _walk(start: LLMatcher) -> Problem | None:
    """Follow a grammar along random outputs, since some grammars exceed the limits only after
    several tokens."""
    begin = time.process_time()
    for seed in range(_WALKS):
        random, matcher = Random(seed), start.deep_copy()
        for _ in range(_STEPS):
            chosen = _allowed(matcher.compute_logit_bias())
            if matcher.is_error() or not chosen or not matcher.consume_token(random.choice(chosen)):
                break
            if time.process_time() - begin > WALK_SECONDS:
                steps = "milliseconds per token to follow"
                return Problem("grammar_too_complex", f"it takes {steps}: make it less ambiguous")
        # A worker follows forced text to its end; the engine reports a failure at the next mask.
        matcher.compute_ff_bytes()
        matcher.compute_bitmask()
        if matcher.is_error():
            return _problem(matcher.get_error())
    return None


def _allowed(bias: bytes) -> list[int]:
    """Ids of the tokens that may follow, other than the end."""
    return [token for token, set_ in enumerate(bias[: _TrialTokens.eos_token_id]) if set_]


def _problem(message: str) -> Problem:
    code = "invalid_value"
    if _UNSUPPORTED.search(message):
        code = "unsupported_value"
    elif _COMPLEX.search(message):
        code = "grammar_too_complex"
    return Problem(code, plain(message))


def plain(message: str) -> str:
    """The engine's message without positions in the translated text, which the client does not
    know."""
    if "NoExtension" in message:
        return "nothing matches it"
    detail = re.search(r"^error: (.*)$", message, re.MULTILINE)
    line = detail[1] if detail else message.partition("\n")[0]
    line = re.sub(r"^(at )?\d+\(\d+\): ", "", line)
    line = line.removeprefix("failed to compile JSON schema: ").rstrip(".")
    for words, better in _BETTER.items():
        line = re.sub(words, better, line)
    return line[:300]
