"""A spec as a readable tree: fields that differ from defaults, grouped layers, sizes, backends.

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
from torch import nn

from baton_worker.kernels.kv_codes import KVCodes
from baton_worker.kv_cache import bytes_per_page, group_bytes, page_groups
from baton_worker.kv_cache.page_shapes import state_bytes, state_shapes
from baton_worker.layers.attention.gqa import Attention
from baton_worker.layers.attention.mla import LatentAttention
from baton_worker.layers.build_context import BuildContext
from baton_worker.models.build import build
from baton_worker.models.dual_encoder import build_dual_encoder
from baton_worker.models.encoder import build_encoder
from baton_worker.spec import Decoder, DualEncoder, Encoder

_MOST_SHOWN = 16
"""Numbers shown of a tuple."""
_ATTENTION = (Attention, LatentAttention)
"""Layers with a backend that depends on the device."""
_APART = ("layers", "tensors")
"""Decoder fields shown in their own branch, or irrelevant to the computation."""


def tree(
    name: str,
    spec: Decoder,
    context: BuildContext,
    *,
    page_size: int = 16,
) -> Tree:
    """The tree of a decoder with pages of `page_size` tokens, or of an encoder, which has none; no
    weight is allocated.

    Raises:
        ModelError: no layer or backend fits the spec.
    """
    dtype, codes = context.dtype, context.codes
    model = _unfilled(spec, context)
    count = sum(parameter.numel() for parameter in model.parameters())
    size = f"{_short(count)} parameters, {decimal(count * dtype.itemsize)} in {_name(dtype)}"
    root = Tree(Text(f"{name}  {size}"))
    _add(spec, root)
    if isinstance(spec, Encoder):
        return root
    for line in _pages(spec, page_size, dtype, codes):
        root.add(Text(line))
    calls = [module.call for module in model.modules() if isinstance(module, _ATTENTION)]
    for call in dict.fromkeys(replace(call, device=context.device) for call in calls):
        root.add(Text(f"attention by {context.attention.name(call)}: {call}"))
    return root


def _unfilled(spec: Decoder, context: BuildContext) -> nn.Module:
    """The modules of a spec, without memory for their weights."""
    context = replace(context, device=torch.device("meta"))
    if isinstance(spec, DualEncoder):
        return build_dual_encoder(spec, context)
    if isinstance(spec, Encoder):
        return build_encoder(spec, context)
    return build(spec, context)


def _add(spec: Decoder, branch: Tree) -> None:
    """The fields and layers of a stack, and of the stacks in it."""
    branch.add(Text(", ".join(_changed(spec, without=_APART))))
    for layers, parts in _runs(spec.layers):
        some = branch.add(Text(layers))
        for part in parts:
            some.add(Text(brief(part)))
    for field in fields(spec):
        if isinstance(inner := getattr(spec, field.name), Decoder):
            _add(inner, branch.add(Text(field.name)))


def _pages(
    spec: Decoder, page_size: int, dtype: torch.dtype, codes: KVCodes | None
) -> Iterator[str]:
    """Cache bytes per sequence, with the layout if it is not plain KV."""
    states = sum(map(state_bytes, state_shapes(spec).values()))
    kv_bytes = bytes_per_page(spec, 1, dtype, codes) - states
    yield f"keys and values: {kv_bytes} bytes per token{f' in {codes}' if codes else ''}"
    if states:
        yield f"states: {states} bytes per page"
    groups = page_groups(spec, page_size, dtype, codes)
    if len(groups.windows) > 1 or states:
        size = group_bytes(spec, groups, page_size, dtype, codes)
        yield f"pages: {size} bytes for {page_size} tokens of one of {groups}"


def brief(value: Any) -> str:
    """A spec with the fields that differ from their defaults; None as "nothing"."""
    if value is None:
        return "nothing"
    if isinstance(value, tuple):
        shown = [brief(one) for one in value[:_MOST_SHOWN]]
        if len(value) > _MOST_SHOWN:
            shown[1:] = [f"... {len(value)} in all"]
        return f"({', '.join(shown)})"
    if not is_dataclass(value):
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    return f"{type(value).__name__}({', '.join(_changed(value))})"


def _changed(value: Any, without: Sequence[str] = ()) -> Iterator[str]:
    for field in fields(value):
        current = getattr(value, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        is_separate = field.name in without or isinstance(current, Decoder)
        if not is_separate and (default is MISSING or current != default):
            yield f"{field.name}={brief(current)}"


def _runs(layers: Sequence[tuple[Any, ...]]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Equal layers as ("layers 0, 2-3", description), ordered by first occurrence."""
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for number, parts in enumerate(layers):
        kinds.setdefault(parts, []).append(number)
    for parts, numbers in kinds.items():
        yield f"{'layer' if len(numbers) == 1 else 'layers'} {_ranges(numbers)}", parts


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] as "0-2, 5"."""
    breaks = [i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if b != a + 1]
    pieces = [numbers[a:b] for a, b in pairwise([0, *breaks, len(numbers)])]
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in pieces)


def _short(count: int) -> str:
    """1235814400 as "1.24 B"."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
