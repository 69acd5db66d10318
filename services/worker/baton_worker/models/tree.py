"""A spec as a tree for people: what differs from the defaults, equal layers once, sizes, backends.

Qwen3ForCausalLM  1.72 B parameters, 3.4 GB in bfloat16
├── hidden=2048, vocab=151936, max_length=40960, norm=Norm(eps=1e-06), head=Head(tied=True)
├── layers 0-27
│   ├── Attention(num_heads=16, num_kv_heads=8, head_dim=128, ...)
│   └── Glu(intermediate=6144)
├── keys and values: 114688 bytes per token
└── attention by cpu: 16 query and 8 key heads of 128 over all tokens, bfloat16 on cpu
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from rich.filesize import decimal
from rich.text import Text
from rich.tree import Tree

from baton_worker.attention import BACKENDS, choose
from baton_worker.kernels.pages import Codes
from baton_worker.kv import bytes_per_page
from baton_worker.layers.attention import Attention
from baton_worker.models.build import build
from baton_worker.models.spec import Decoder

_APART = ("layers", "names", "fused", "stacked", "renames", "unused")
"""Fields of a decoder that have a branch of their own, or say nothing about what it computes."""


def tree(
    name: str,
    spec: Decoder,
    *,
    device: torch.device,
    dtype: torch.dtype,
    codes: Codes | None = None,
) -> Tree:
    """The tree of a decoder as it would run on a device in a precision, with such codes in its
    pages; no weight is allocated.

    Raises:
        ModelError: no layer or backend fits the spec.
    """
    model = build(spec, device=torch.device("meta"), dtype=dtype, codes=codes)
    count = sum(parameter.numel() for parameter in model.parameters())
    size = f"{_short(count)} parameters, {decimal(count * dtype.itemsize)} in {_name(dtype)}"
    root = Tree(Text(f"{name}  {size}"))
    root.add(Text(", ".join(_changed(spec, without=_APART))))
    for layers, parts in _runs(spec.layers):
        branch = root.add(Text(f"layers {layers}"))
        for part in parts:
            branch.add(Text(brief(part)))
    kept = bytes_per_page(spec, 1, dtype, codes)
    root.add(Text(f"keys and values: {kept} bytes per token{f' in {codes}' if codes else ''}"))
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    for call in dict.fromkeys(replace(a.call, device=device) for a in attentions):
        root.add(Text(f"attention by {_backend(call)}: {call}"))
    return root


def brief(value: Any) -> str:
    """A spec with the fields that differ from their defaults; None as "nothing"."""
    if value is None:
        return "nothing"
    if not is_dataclass(value):
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    return f"{type(value).__name__}({', '.join(_changed(value))})"


def _changed(value: Any, without: Sequence[str] = ()) -> Iterator[str]:
    for field in fields(value):
        own = getattr(value, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if field.name not in without and (default is MISSING or own != default):
            yield f"{field.name}={brief(own)}"


def _runs(layers: Sequence[tuple[Any, ...]]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Equal layers as (their numbers, what they are), in order of the first of each kind."""
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for number, parts in enumerate(layers):
        kinds.setdefault(parts, []).append(number)
    for parts, numbers in kinds.items():
        yield _ranges(numbers), parts


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] as "0-2, 5"."""
    breaks = [i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if b != a + 1]
    pieces = [numbers[a:b] for a, b in pairwise([0, *breaks, len(numbers)])]
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in pieces)


def _backend(call: Any) -> str:
    backend = choose(call)
    return next(name for name in BACKENDS.names() if isinstance(backend, BACKENDS.load(name)))


def _short(count: int) -> str:
    """1235814400 as "1.24 B"."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
