"""Translates a `Grammar` for xgrammar, the second engine for structured output.

https://github.com/mlc-ai/xgrammar. It precomputes masks for the whole vocabulary. Its JSON schema
converter silently ignores unknown keywords, and keywords without a `type` beside them. So schemas
are narrowed to the subset that it enforces exactly; other keywords are refused by name.

The package is optional: only this module and the worker's grammar engine import it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
import xgrammar as xgr

from baton.protocol import Grammar
from baton.structured_output.json_schema import Schema
from baton.structured_output.llguidance import CPU_SECONDS, WALK_SECONDS, GrammarError, Problem

_WALKS, _STEPS = 4, 32
_OTHER = "the other engine, llguidance, may"
_GBNF = re.compile(r"^\s*root\s*::=", re.MULTILINE)
_ANNOTATIONS = frozenset(
    {"$comment", "$schema", "default", "deprecated", "description", "examples", "readOnly",
     "title", "writeOnly"}
)  # fmt: skip
_NAMESPACES = frozenset({"$defs", "definitions", "$id"})
_OF_TYPE = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "boolean": frozenset[str](),
    "null": frozenset[str](),
}
"""Constraining keywords per type that xgrammar enforces."""
_ALL = ("string", "number", "boolean", "null", "object", "array")
_ALL_TYPES = [*_OF_TYPE]
_ALONE = ("$ref", "const", "enum", "anyOf")
"""Keywords that exclude others: xgrammar would ignore a second constraint next to them."""
FORMATS = frozenset({"uuid"})
"""Formats that xgrammar enforces exactly; its dates, for example, are not exact."""
_NAME = re.compile(r"[^\x00-\x1f\"\\]*")
"""Property names that xgrammar matches: those without JSON escapes."""
_NUMBER, _LIST, _SCHEMA = (int, float), (list,), (dict, bool)
_SHAPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _NUMBER),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(("enum", "anyOf", "required", "prefixItems"), _LIST),
    **dict.fromkeys(("$defs", "definitions", "properties"), (dict,)),
    **dict.fromkeys(("items", "additionalProperties"), _SCHEMA),
    **dict.fromkeys(("$ref", "pattern", "format"), (str,)),
}
_PUNCTUATION = frozenset(r".^$|?*+()[]{}/-'")
_ESCAPES = _PUNCTUATION | frozenset('dDwWsnrt\\"')
_JSON_ESCAPES = _PUNCTUATION | frozenset("dw")
_TOKEN = re.compile(r"(?P<class>\[(?:\\.|[^\]\\])*\])|(?P<escape>\\.?)|(?P<other>.)", re.DOTALL)
_CLASS = re.compile(r"\[\^?(?:\\.|[^\]\[\\&^])+\]", re.DOTALL)
_JSON_CLASS = re.compile(
    r"""\[(?:\\.|[0-9]-[0-9]|[a-z]-[a-z]|[A-Z]-[A-Z]|[^\]\[\\&^"\x00-\x1f-])+-?\]"""
)
_WHOLE = re.compile(r"\^(?P<inner>.*)\$", re.DOTALL)


def compiled(compiler: xgr.GrammarCompiler, grammar: Grammar) -> xgr.CompiledGrammar:
    """Compile a grammar for the vocabulary of `compiler`. Raises `GrammarError`."""
    try:
        match grammar.kind:
            case "json_object":
                return _of_schema(compiler, {"type": "object"}, grammar.compact)
            case "json_schema":
                schema = narrow(msgspec.json.decode(grammar.source))
                return _of_schema(compiler, schema, grammar.compact)
            case "regex":
                return compiler.compile_regex(_plain(grammar.source))
            case "choice":
                return compiler.compile_grammar(_choice(msgspec.json.decode(grammar.source)))
            case "grammar":
                return compiler.compile_grammar(_gbnf(grammar.source))
            case "tool_calls":
                raise GrammarError(f"xgrammar does not follow tool calls here: {_OTHER}")
            case "structural_tag":
                raise GrammarError(f"xgrammar does not follow structural tags here: {_OTHER}")
            case "text":
                raise GrammarError("any text is no grammar")
    except RuntimeError as error:
        raise GrammarError(_first_line(error)) from error


def _of_schema(compiler: xgr.GrammarCompiler, schema: Schema, compact: bool) -> xgr.CompiledGrammar:
    return compiler.compile_json_schema(
        msgspec.json.encode(schema).decode(),
        any_whitespace=not compact,
        max_whitespace_cnt=None if compact else 16,
        separators=(", ", ": ") if compact else None,
        strict_mode=False,
    )


def _first_line(error: Exception) -> str:
    """xgrammar's message without its source location."""
    line = str(error).strip().partition("\n")[0]
    return re.sub(r"^\[[\d:]+\] \S+: ", "", line)[:300] or type(error).__name__


def narrow(schema: Any) -> Schema:
    """Rewrite a schema to the subset that xgrammar enforces exactly. Raises `GrammarError`."""
    if not isinstance(schema, dict):
        raise GrammarError("the schema must be an object")
    return _narrow(schema, root=True)


def _narrow(schema: Any, *, root: bool = False) -> Schema:
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise _lacks("a schema that is false")
    for keyword, shape in _SHAPES.items():
        value = schema.get(keyword, shape[0]())
        if not isinstance(value, shape) or (isinstance(value, bool) and bool not in shape):
            raise GrammarError(f"'{keyword}' is not what it must be")
    names = {k: _maps(schema[k]) for k in ("$defs", "definitions") if k in schema and root}
    constraints = {k: v for k, v in schema.items() if k not in _ANNOTATIONS}
    constraints = {k: v for k, v in constraints.items() if not (root and k in _NAMESPACES)}
    alone = [keyword for keyword in _ALONE if keyword in constraints]
    if alone:
        return names | _alone(alone[0], constraints)
    return names | _typed(constraints)


def _maps(value: Schema) -> Schema:
    return {name: _narrow(child) for name, child in value.items()}


def _alone(keyword: str, schema: Schema) -> Schema:
    other_keywords = schema.keys() - {keyword}
    if other_keywords:
        raise _lacks(f"'{min(other_keywords)}' beside '{keyword}'")
    value = schema[keyword]
    if keyword == "anyOf":
        if not value:
            raise GrammarError("'anyOf' must have an item")
        return {"anyOf": [_narrow(child) for child in value]}
    if keyword == "$ref" and not re.fullmatch(r"#|#/(\$defs|definitions)/[^/~%]+", value):
        raise _lacks(f"the '$ref' {value}")
    return {keyword: value}


def _typed(schema: Schema) -> Schema:
    """Split a schema into one alternative per allowed type, each with its own keywords."""
    known = frozenset[str]().union(*_OF_TYPE.values())
    if unknown := schema.keys() - known - {"type"}:
        raise _lacks(f"'{min(unknown)}'")
    types = schema.get("type", list(_ALL))
    types = [types] if isinstance(types, str) else types
    if not isinstance(types, list) or not types or any(t not in _ALL_TYPES for t in types):
        raise GrammarError(f"'type' cannot be {schema.get('type')}")
    if schema.keys() <= {"type"} and "type" not in schema:
        return {}
    branches = [
        _of_type(kind, {k: v for k, v in schema.items() if k in _OF_TYPE[kind]}) for kind in types
    ]
    return branches[0] if len(branches) == 1 else {"anyOf": branches}


def _of_type(kind: str, keywords: Schema) -> Schema:
    narrowed: Schema = {"type": kind}
    match kind:
        case "string":
            narrowed |= _string(keywords)
        case "integer" | "number":
            narrowed |= _bounds(keywords, whole=kind == "integer")
        case "object":
            narrowed |= _object(keywords)
        case "array":
            narrowed |= _array(keywords)
    return narrowed


def _string(keywords: Schema) -> Schema:
    if len(keywords.keys() - {"minLength", "maxLength"}) and len(keywords) > 1:
        raise _lacks("'pattern' or 'format' beside another constraint of a string")
    if "format" in keywords and keywords["format"] not in FORMATS:
        raise _lacks(f"the 'format' {keywords['format']}")
    if "pattern" in keywords:
        match = _WHOLE.fullmatch(keywords["pattern"])
        if match is None or match["inner"].endswith("\\"):
            raise _lacks("a 'pattern' that is not all of '^...$'")
        return {"pattern": f"^({_plain(match['inner'], in_json=True)})$"}
    return {
        k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in keywords.items()
    }


def _bounds(keywords: Schema, *, whole: bool) -> Schema:
    for keyword, bound in keywords.items():
        if not float(bound).is_integer() or abs(bound) >= 2**53:
            raise _lacks(f"'{keyword}' {bound}")
        if not whole:
            raise _lacks(f"'{keyword}' of a number that is not an integer")
    return {keyword: int(bound) for keyword, bound in keywords.items()}


def _object(keywords: Schema) -> Schema:
    narrowed = dict(keywords)
    if "properties" in keywords:
        narrowed["properties"] = _maps(keywords["properties"])
        if wrong := [name for name in narrowed["properties"] if not _NAME.fullmatch(name)]:
            raise _lacks(f"the name of the property {wrong[0]!r}")
    if isinstance(keywords.get("additionalProperties"), dict):
        narrowed["additionalProperties"] = _narrow(keywords["additionalProperties"])
    if any(name not in [*narrowed.get("properties", ())] for name in keywords.get("required", ())):
        raise _lacks("a 'required' property that is not among 'properties'")
    return narrowed


def _array(keywords: Schema) -> Schema:
    narrowed = {
        k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in keywords.items()
    }
    if "prefixItems" in keywords:
        narrowed["prefixItems"] = [_narrow(child) for child in keywords["prefixItems"]]
    if "items" in keywords and keywords["items"] is not False:
        narrowed["items"] = _narrow(keywords["items"])
    return narrowed


def _lacks(construct: str) -> GrammarError:
    return GrammarError(f"xgrammar cannot honour {construct[:100]}: {_OTHER}")


def _plain(pattern: str, *, in_json: bool = False) -> str:
    """Rewrite a regular expression to xgrammar's syntax. With `in_json`, refuse characters that
    JSON strings escape, since it matches against the raw text."""
    inner = pattern.removeprefix("^")
    inner = inner[:-1] if inner.endswith("$") and not inner.endswith("\\$") else inner
    if re.search(r"(?<!\\)\(\?(?!:)", inner):
        raise _lacks("'(?' in a pattern")
    return "".join(_token(match, in_json) for match in _TOKEN.finditer(inner))


def _token(token: re.Match[str], in_json: bool) -> str:
    text = token[0]
    escapes = _JSON_ESCAPES if in_json else _ESCAPES
    if any(escape not in escapes for escape in re.findall(r"\\(.?)", text, re.DOTALL)):
        raise _lacks(f"'{text}' in a pattern")
    if token["class"] and not (_JSON_CLASS if in_json else _CLASS).fullmatch(text):
        raise _lacks(f"'{text}' in a pattern")
    if token["other"] and (text in "^$[" or (in_json and (text in '."' or text < " "))):
        raise _lacks(f"'{text}' within a pattern")
    return r"[^\n]" if text == "." else text


def _choice(texts: Iterable[str]) -> str:
    return "root ::= " + " | ".join(msgspec.json.encode(text).decode() for text in texts)


def _gbnf(source: str) -> str:
    if not _GBNF.search(source):
        raise GrammarError(f"xgrammar reads GBNF ('root ::= ...') and not Lark: {_OTHER}")
    return source


class Bytes:
    """Vocabulary for validation: every byte is a token."""

    def __init__(self) -> None:
        info = xgr.TokenizerInfo([*(bytes([i]) for i in range(256)), b"<end>"], stop_token_ids=256)
        self.compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def problem(grammar: Grammar) -> Problem | None:
    """Compile a grammar and follow it for some steps. Returns None if it is valid.

    May need much time and memory: call it where both are limited. Forced text without end needs
    all of them.
    """
    begin = time.process_time()
    try:
        matcher = xgr.GrammarMatcher(compiled(Bytes().compiler, grammar))
    except GrammarError as error:
        code = "unsupported_value" if "xgrammar" in str(error) else "invalid_value"
        return Problem(code, str(error))
    _allowed(matcher)
    if time.process_time() - begin > CPU_SECONDS:
        return Problem("grammar_too_complex", f"it takes more than {CPU_SECONDS} s to compile")
    return _walk(matcher)


def _walk(start: xgr.GrammarMatcher) -> Problem | None:
    """Follow a grammar along random outputs, and compute the text that it forces behind them, as a
    worker does."""
    begin = time.process_time()
    for seed in range(_WALKS):
        random, matcher = Random(seed), start.fork()
        for _ in range(_STEPS):
            chosen = _allowed(matcher)
            if time.process_time() - begin > WALK_SECONDS:
                return Problem("grammar_too_complex", "it takes milliseconds per token to follow")
            if not (chosen or matcher.is_completed()):
                return Problem("invalid_value", "nothing matches it")
            if not chosen:
                break
            matcher.accept_token(random.choice(chosen))
        with suppress(UnicodeDecodeError):  # The text is cut within a character.
            matcher.find_jump_forward_string()
    return None


def _allowed(matcher: xgr.GrammarMatcher) -> list[int]:
    """The bytes that may follow."""
    mask = xgr.allocate_token_bitmask(1, 257)
    matcher.fill_next_token_bitmask(mask)
    words = mask[0].tolist()
    return [byte for byte in range(256) if words[byte // 32] >> byte % 32 & 1]


def only_byte(matcher: xgr.GrammarMatcher) -> int:
    """The one byte that may follow in a grammar over `Bytes`; -1 if there are several or none."""
    mask = xgr.allocate_token_bitmask(1, 257)
    matcher.fill_next_token_bitmask(mask)
    bits = int.from_bytes(mask.numpy().tobytes()[:32], "little")
    return bits.bit_length() - 1 if bits.bit_count() == 1 else -1
