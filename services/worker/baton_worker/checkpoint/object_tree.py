"""Objects of this package as trees of plain values, for MessagePack, and back.

    None, bool, int, float, str, bytes    themselves
    everything else                       [kind, ...], see `_KINDS`

An object is its class, by name, and its attributes. Classes and functions are those of this
package; another package with data or code in an object, such as a library in C, is refused by name.
An object that two others refer to is there twice.
"""

from __future__ import annotations

import abc
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from types import FunctionType, MethodType
from typing import Any, TypeAlias

import torch

Described: TypeAlias = list[Any]
"""A kind and what it takes."""
Tree: TypeAlias = Any
"""A plain value, or `Described`."""
_PACKAGE = "baton_worker."
_PLAIN = (bool, int, float, str, bytes, type(None))
_BASES = (object, tuple, abc.ABC, typing.Generic, typing.Protocol)
"""Classes beside those of the package that have no data of their own."""
_NAMED = "named"


class NotDescribed(Exception):
    """An object has parts that are no plain values, in half a sentence."""


def tree_of(value: Any, name: Callable[[Any], Described | None]) -> Tree:
    """The tree of an object; `name` returns what replaces a part of it, or None for its own tree.

    Raises:
        NotDescribed: it holds something of others.
    """
    if type(value) in _PLAIN:
        return value
    if (named := name(value)) is not None:
        return [_NAMED, named]

    def inner(part: Any) -> Tree:
        return tree_of(part, name)

    for key, (is_one, write, _) in _KINDS.items():
        if is_one(value):
            return [key, *write(value, inner)]
    raise NotDescribed(
        f"{type(value).__module__}.{type(value).__qualname__} is not of this package"
    )


def object_of(tree: Tree, named: Callable[[Described], Any]) -> Any:
    """The object of a tree; `named` returns what a name stands for.

    Raises:
        NotDescribed: it is of other classes than this package has.
    """
    if not isinstance(tree, list):
        return tree
    kind, *fields = tree
    if kind == _NAMED:
        return named(*fields)
    if kind not in _KINDS:
        raise NotDescribed(f"{kind!r} is no kind of object")
    return _KINDS[kind][2](fields, lambda part: object_of(part, named))


_Write: TypeAlias = Callable[[Any, Callable[[Any], Tree]], list[Any]]
_Read: TypeAlias = Callable[[list[Any], Callable[[Tree], Any]], Any]


def _qualified(value: Any) -> list[str]:
    """Module and name by which a class or function is found."""
    where = [value.__module__, value.__qualname__]
    if _resolve(*where) is not value:
        raise NotDescribed(f"{'.'.join(where)} is not found by its name")
    return where


def _resolve(module: str, name: str) -> Any:
    if not module.startswith(_PACKAGE):
        raise NotDescribed(f"{module}.{name} is not of this package")
    value: Any = import_module(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def _is_own(value: Any) -> bool:
    """Whether an object has attributes of this package's classes, and no other data."""
    kinds = type(value).__mro__
    return all(kind in _BASES or kind.__module__.startswith(_PACKAGE) for kind in kinds)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot != "__weakref__" and hasattr(value, slot):
                yield slot, getattr(value, slot)


def _write_object(value: Any, inner: Callable[[Any], Tree]) -> list[Any]:
    attributes = {name: inner(part) for name, part in _attributes(value)}
    return [*_qualified(type(value)), attributes]


def _read_object(fields: list[Any], inner: Callable[[Tree], Any]) -> Any:
    kind = _resolve(*fields[:2])
    result = object.__new__(kind)
    for name, part in fields[2].items():
        object.__setattr__(result, name, inner(part))  # A frozen class has another one.
    return result


def _write_parts(value: Any, inner: Callable[[Any], Tree]) -> list[Any]:
    return [inner(part) for part in value]


def _read_dtype(fields: list[Any], inner: Callable[[Tree], Any]) -> Any:
    dtype = getattr(torch, str(fields[0]), None)
    if not isinstance(dtype, torch.dtype):
        raise NotDescribed(f"torch has no dtype {fields[0]}")
    return dtype


_KINDS: dict[str, tuple[Callable[[Any], bool], _Write, _Read]] = {
    "list": (
        lambda value: type(value) is list,
        _write_parts,
        lambda given, inner: [inner(part) for part in given],
    ),
    "tuple": (
        lambda value: type(value) is tuple,
        _write_parts,
        lambda given, inner: tuple(inner(part) for part in given),
    ),
    "dict": (
        lambda value: type(value) is dict,
        lambda value, inner: [[inner(key), inner(part)] for key, part in value.items()],
        lambda given, inner: {inner(key): inner(part) for key, part in given},
    ),
    "size": (
        lambda value: isinstance(value, torch.Size),
        lambda value, inner: list(value),
        lambda given, inner: torch.Size(given),
    ),
    "dtype": (
        lambda value: isinstance(value, torch.dtype),
        lambda value, inner: [str(value).removeprefix("torch.")],
        _read_dtype,
    ),
    "device": (
        lambda value: isinstance(value, torch.device),
        lambda value, inner: [str(value)],
        lambda given, inner: torch.device(given[0]),
    ),
    "function": (
        lambda value: isinstance(value, (FunctionType, type)),
        lambda value, inner: _qualified(value),
        lambda given, inner: _resolve(*given),
    ),
    "method": (
        lambda value: isinstance(value, MethodType),
        lambda value, inner: [inner(value.__self__), value.__name__],
        lambda given, inner: getattr(inner(given[0]), given[1]),
    ),
    "named tuple": (
        lambda value: isinstance(value, tuple) and _is_own(value),
        lambda value, inner: [*_qualified(type(value)), *_write_parts(value, inner)],
        lambda given, inner: _resolve(*given[:2])(*(inner(part) for part in given[2:])),
    ),
    "object": (_is_own, _write_object, _read_object),
}
"""By kind of object a predicate, a writer and a reader; the first kind whose predicate holds is
used."""
