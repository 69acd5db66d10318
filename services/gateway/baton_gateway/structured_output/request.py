"""Parses the constraint of a request and checks the limits that need no compiler.

`response_format` is OpenAI's, `structured_outputs` and the older `guided_*` are vLLM's.
`baton_gateway.structured_output.validator` compiles the grammar.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from baton.errors import InvalidRequest
from baton.protocol import Grammar
from baton_gateway.http.errors import (
    array_too_long,
    empty_array,
    empty_string,
    invalid,
    missing,
    shorten,
    wrong_type,
)
from baton_gateway.structured_output.json_schema import (
    MAX_PATTERN,
    check_schema,
    complex_grammar,
    invalid_schema,
    repeats_too_often,
)

MAX_CHOICES = 1000
_MAX_TEXT = 64 * 1024
_MAX_GRAMMAR = 16 * 1024
_MAX_PARENTHESES = 64
_MAX_TAGS = 64
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DIRECTIVE = re.compile(r"%\s*(json|llguidance|regex|lark)\b|\btemperature\s*=")
CONSTRAINTS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
"""Request fields that `constraint` reads."""
_COMPACT = "disable_any_whitespace"
"""vLLM's name for compact JSON."""
_JSON_KINDS = ("json_schema", "json_object", "structural_tag")
_FORMATS = ("text", "json_object", "json_schema", "structural_tag")


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar and the request field that contains it."""

    grammar: Grammar
    param: str
    name: str = ""
    """Name of the schema given by the client."""

    @property
    def is_of_message(self) -> bool:
        """Whether it is OpenAI's `response_format`, which constrains messages but not calls."""
        return self.param == "response_format" and self.grammar.kind != "structural_tag"


def constraint(fields: dict[str, Any]) -> Constraint | None:
    """Return the constraint of a request, or None. Raises `InvalidRequest` for more than one."""
    constraints = [
        *_of_format(fields.get("response_format")),
        *_of_object(fields.get("structured_outputs")),
        *(
            constraint
            for kind in ("json", "regex", "choice", "grammar")
            if (value := fields.get(f"guided_{kind}")) is not None
            for constraint in _of_kind(kind, value, f"guided_{kind}")
        ),
    ]
    if len(constraints) > 1:
        raise _several(constraints[1].param.partition(".")[0])
    return constraints[0] if constraints else None


def _several(param: str) -> InvalidRequest:
    return invalid(param, f"Invalid '{param}': only one constraint of the output can be used.")


def _of_format(value: object) -> list[Constraint]:
    if value is None:
        return []
    if not isinstance(value, dict):
        raise wrong_type("response_format", "an object", value)
    if "type" not in value:
        raise missing("response_format.type")
    kind = value["type"]
    if kind not in _FORMATS:
        supported = ", ".join(f"'{f}'" for f in _FORMATS)
        raise invalid(
            "response_format.type",
            f"Invalid value: {shorten(kind)}. Supported values are: {supported}.",
        )
    if kind == "json_schema":
        return [_named_schema(value.get("json_schema"), "response_format.json_schema")]
    if kind == "structural_tag":
        return _structural_tag(value, "response_format")
    if kind == "text":
        return []
    schema = value.get("schema")
    if schema is not None:
        return [_schema(schema, "response_format")]
    return [Constraint(Grammar("json_object", ""), "response_format")]


def _named_schema(value: object, param: str) -> Constraint:
    if value is None:
        raise missing(param)
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    name = value.get("name")
    if name is None:
        raise missing(f"{param}.name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid(
            f"{param}.name",
            f"Invalid '{param}.name': expected 1 to 64 letters, digits, '_' or '-'.",
        )
    if not isinstance(value.get("strict"), bool | None):
        raise wrong_type(f"{param}.strict", "a boolean", value["strict"])
    if not isinstance(value.get("description"), str | None):
        raise wrong_type(f"{param}.description", "a string", value["description"])
    if "schema" not in value:
        raise missing(f"{param}.schema")
    return _schema(value["schema"], "response_format", name)


def _of_object(value: object) -> list[Constraint]:
    param = "structured_outputs"
    if value is None:
        return []
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    chosen = {k: v for k, v in value.items() if v is not None and v is not False}
    compact = chosen.pop(_COMPACT, False)
    if not isinstance(compact, bool):
        raise wrong_type(f"{param}.{_COMPACT}", "a boolean", compact)
    for kind in chosen:
        if kind not in _KINDS:
            kinds = ", ".join(f"'{k}'" for k in _KINDS)
            raise invalid(
                f"{param}.{kind[:64]}",
                f"Unsupported value: '{kind[:64]}' is not a constraint. Known: {kinds}.",
                "unsupported_value",
            )
    if len(chosen) > 1:
        raise _several(param)
    if not chosen:
        raise missing(f"{param}.json")
    ((kind, content),) = chosen.items()
    constraints = _of_kind(kind, content, f"{param}.{kind}")
    return [_compacted(constraint) for constraint in constraints] if compact else constraints


def _compacted(constraint: Constraint) -> Constraint:
    """Restrict JSON white space to one space after commas and colons."""
    if constraint.grammar.kind not in _JSON_KINDS:
        raise invalid(
            f"structured_outputs.{_COMPACT}",
            f"Unsupported value: '{_COMPACT}' is about JSON, and this constraint is not.",
            "unsupported_value",
        )
    return replace(constraint, grammar=msgspec.structs.replace(constraint.grammar, compact=True))


def _of_kind(kind: str, value: Any, param: str) -> list[Constraint]:
    return _KINDS[kind](value, param)


def _json(value: Any, param: str) -> list[Constraint]:
    """Parse a JSON schema given as an object or as JSON text."""
    return [_schema(_decoded(value, param) if isinstance(value, str) else value, param)]


def _schema(value: Any, param: str, name: str = "") -> Constraint:
    if not isinstance(value, dict):
        raise invalid_schema(param, "it must be an object", name)
    check_schema(value, param, name)
    source = msgspec.json.encode(value).decode()
    if len(source) > _MAX_TEXT:
        raise complex_grammar(param, f"the schema has more than {_MAX_TEXT} characters")
    return Constraint(Grammar("json_schema", source), param, name)


def _json_object(value: Any, param: str) -> list[Constraint]:
    if value is not True:
        raise wrong_type(param, "a boolean", value)
    return [Constraint(Grammar("json_object", ""), param)]


def _regex(value: Any, param: str) -> list[Constraint]:
    check_regex(_text(value, param, _MAX_TEXT), param)
    return [Constraint(Grammar("regex", value), param)]


def _choice(value: Any, param: str) -> list[Constraint]:
    if not isinstance(value, list):
        raise wrong_type(param, "an array of strings", value)
    if not value:
        raise empty_array(param)
    if len(value) > MAX_CHOICES:
        raise array_too_long(param, MAX_CHOICES)
    for i, choice in enumerate(value):
        _text(choice, f"{param}[{i}]", _MAX_TEXT)
    source = msgspec.json.encode(value).decode()
    _text(source, param, _MAX_TEXT)
    return [Constraint(Grammar("choice", source), param)]


def _grammar(value: Any, param: str) -> list[Constraint]:
    """Parse GBNF (`root ::= ...`) or llguidance's Lark (`start: ...`)."""
    source = _text(value, param, _MAX_GRAMMAR)
    depth = deepest = 0
    for character in source:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > _MAX_PARENTHESES:
        raise complex_grammar(param, f"parentheses are nested more than {_MAX_PARENTHESES} deep")
    if directive := _DIRECTIVE.search(source):
        raise invalid(
            param,
            f"Unsupported value: '{directive[0].strip()}' cannot be used in a grammar.",
            "unsupported_value",
        )
    return [Constraint(Grammar("grammar", source), param)]


def _structural_tag(value: Any, param: str) -> list[Constraint]:
    """Parse a structural tag: in free text, a trigger starts a tag whose content follows a
    schema."""
    value = _decoded(value, param) if isinstance(value, str) else value
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    for field in ("structures", "triggers"):
        _check_list(value.get(field), f"{param}.{field}")
    for i, trigger in enumerate(value["triggers"]):
        _text(trigger, f"{param}.triggers[{i}]", 256)
    tags = [_tag(t, f"{param}.structures[{i}]") for i, t in enumerate(value["structures"])]
    source = msgspec.json.encode({"structures": tags, "triggers": value["triggers"]}).decode()
    if len(source) > _MAX_TEXT:
        raise complex_grammar(param, f"the tags have more than {_MAX_TEXT} characters")
    return [Constraint(Grammar("structural_tag", source), param)]


def _tag(value: Any, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    for field in ("begin", "end"):
        _text(value.get(field), f"{param}.{field}", 256)
    schema = value.get("schema")
    if not isinstance(schema, dict):
        raise wrong_type(f"{param}.schema", "an object", schema)
    check_schema(schema, f"{param}.schema", "")
    return {"begin": value["begin"], "schema": schema, "end": value["end"]}


def _check_list(value: Any, param: str) -> None:
    if value is None:
        raise missing(param)
    if not isinstance(value, list):
        raise wrong_type(param, "an array", value)
    if not value:
        raise empty_array(param)
    if len(value) > _MAX_TAGS:
        raise array_too_long(param, _MAX_TAGS)


def _text(value: Any, param: str, most: int) -> str:
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    if not value:
        raise empty_string(param)
    if len(value) > most:
        raise complex_grammar(param, f"it has more than {most} characters")
    return value


def _decoded(text: str, param: str) -> Any:
    if len(text) > _MAX_TEXT:
        raise complex_grammar(param, f"it has more than {_MAX_TEXT} characters")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(param, f"Invalid '{param}': expected JSON. {error}") from error


_KINDS: dict[str, Callable[[Any, str], list[Constraint]]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _json_object,
    "structural_tag": _structural_tag,
}


def check_regex(pattern: str, param: str) -> None:
    """Raise `InvalidRequest` for a pattern that is too long, repeats too often, uses lookaround or
    ends within an escape, which the engine drops silently."""
    if len(pattern) > MAX_PATTERN:
        raise complex_grammar(param, f"the expression has more than {MAX_PATTERN} characters")
    if repeats_too_often(pattern):
        raise complex_grammar(param, "a part of the expression is repeated too often")
    if lookaround := re.search(r"\(\?<?[=!]", pattern):
        raise invalid(
            param,
            f"Unsupported value: look-around '{lookaround[0]}' cannot be used here.",
            "unsupported_value",
        )
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise invalid(param, f"Invalid '{param}': a trailing '\\' escapes nothing.")
