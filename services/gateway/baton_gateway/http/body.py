"""Parses and validates request bodies: strict JSON (RFC 8259) in UTF-8, of bounded structure."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from baton.errors import InvalidRequest
from baton_gateway.http.errors import invalid, path, translate

DEPTH = 64
"""Maximum nesting of free-form values such as tool schemas."""
MAX_VALUES = 2**20
"""Most values of one body, counted before anything is built."""
MAX_NESTING = 700
"""Deepest nesting of a body. Its free-form fields have a lower limit, `DEPTH`."""
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_BRACKET = re.compile(rb"[\[{\]}]")
_DIGITS = 300
"""Longer integers are truncated to this: still out of every range, but fast to parse and finite as
floats."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

M = TypeVar("M", bound=BaseModel)


def check_type(request: Request) -> None:
    """Raise 415 for any media type but JSON, and for none: pages of other sites can send a body
    without a type, but not one of type JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    is_json = kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )
    if not is_json or coding not in {"", "identity"}:
        raise InvalidRequest(
            "Send the body as application/json, without Content-Encoding.",
            code="unsupported_content_type",
            status=415,
        )


def parse(data: bytes) -> dict[str, Any]:
    """Parse a JSON object (RFC 8259): UTF-8 without byte order mark, unique keys, no NaN."""
    check_structure(data)
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_constant,
            parse_int=_integer,
        )
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            "We could not parse the JSON body of your request. Send one JSON object in UTF-8."
        ) from error
    if not isinstance(value, dict):
        raise InvalidRequest("The body of the request must be a JSON object.", code="invalid_type")
    if _SURROGATE.search(data):
        _check_unicode(value)
    return value


def check_structure(data: bytes) -> None:
    """Raise `InvalidRequest` for a body of too many values or too deep a nesting, valid or not."""
    if len(data) <= MAX_NESTING:
        return
    structure = _TEXT.sub(b"", data)
    openers = structure.count(b"[") + structure.count(b"{")
    if structure.count(b",") + openers > MAX_VALUES:
        raise InvalidRequest(
            f"The body of the request has more than {MAX_VALUES} values. Send fewer at a time.",
            code="request_too_large",
        )
    depth = 0
    for bracket in _BRACKET.findall(structure) if openers > MAX_NESTING else ():
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_NESTING:
            raise InvalidRequest(
                f"The body of the request is nested more than {MAX_NESTING} levels deep."
            )


def build(value: dict[str, Any], model: type[M], *, strict: bool = False) -> M:
    """Validate a parsed body. With `strict`, unknown fields raise `InvalidRequest`."""
    names = {field.alias or name for name, field in model.model_fields.items()}
    if strict:
        for field in value:
            if field not in names:
                raise unknown(field)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise translate(error) from error


def unknown(field: str) -> InvalidRequest:
    """Error for an unknown field."""
    return invalid(field[:64], f"Unknown parameter: '{field[:64]}'.", "unknown_parameter")


def check_free_form(value: object, param: str) -> None:
    """Raise `InvalidRequest` for a free-form value nested deeper than `DEPTH`, or with an infinite
    number: unlike a field it has no range of its own, and JSON cannot repeat it."""
    level: list[object] = [value]
    for _ in range(DEPTH):
        if any(isinstance(item, float) and math.isinf(item) for item in level):
            raise invalid(param, f"Invalid '{param}': it contains a number that is out of range.")
        level = [child for item in level for child in _children(item)]
        if not level:
            return
    raise wrong_depth(param)


def wrong_depth(param: str) -> InvalidRequest:
    """Error for a value that is nested too deeply."""
    return invalid(param, f"Invalid '{param}': nested more than {DEPTH} levels deep.")


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise InvalidRequest(f"The key '{repeated[:64]}' appears twice.", param=repeated[:64])
    return fields


def _constant(literal: str) -> float:
    """Accept infinities, whose range check gives a clearer error; reject NaN, which passes none."""
    if literal == "NaN":
        raise ValueError("NaN is not JSON")
    return float(literal)


def _integer(digits: str) -> int:
    return int(digits[:_DIGITS])


def _check_unicode(value: object) -> None:
    """Raise for a lone surrogate, which UTF-8 cannot encode, with the path of its string."""
    todo: list[tuple[tuple[str | int, ...], object]] = [((), value)]
    while todo:
        where, item = todo.pop()
        if isinstance(item, str):
            _check_text(item, path(where))
        elif isinstance(item, dict):
            for key, child in item.items():
                _check_text(key, path(where))
                todo.append(((*where, key), child))
        elif isinstance(item, list):
            todo.extend(((*where, i), child) for i, child in enumerate(item))


def _check_text(text: str, param: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"Invalid '{param}': it contains half a surrogate pair, which is not text.",
            code="null_or_invalid_unicode",
            param=param or None,
        ) from None
