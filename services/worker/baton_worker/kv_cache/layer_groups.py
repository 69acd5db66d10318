"""Which layers share a block table.

Layers that see equally far back have one group of pages, or several of equally many layers: then a
page of any group has the same shape, and one pool of page numbers serves them all. Gemma 3, in six
layers of which five see a window:

    layer    0  1  2  3  4  5   6  7  8  9 10 11        a page of group 2, whose layers are 1 and 7:
    group    1  2  3  4  5  0   1  2  3  4  5  0           plane 0: its tokens in layer 1
    plane    0  0  0  0  0  0   1  1  1  1  1  1           plane 1: its tokens in layer 7

A group that is short of a layer leaves a plane of its pages empty. Where what layers keep differs
in shape, a page is so many bytes, and each layer of a group has its part of them: LFM2, of whose
24 layers 18 keep the inputs of a convolution, twice as wide as keys and values of the other six.

    page of group 0        | layer 2 | layer 6 | layer 10 | layer 14 | layer 18 | layer 21 |
    page of group 1 .. 6   | layer 0           | layer 8             | layer 16            |
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from baton_worker.kernels.kv_pages import KVCodes
from baton_worker.kv_cache.page_shapes import (
    PageShape,
    layer_bytes,
    page_shapes,
    state_shapes,
)
from baton_worker.spec import (
    Decoder,
    Encoder,
    LatentAttention,
    Mixer,
    Recurrent,
)

_MOST_GROUPS = 8
"""A sequence takes a page of each group for each of its blocks."""
_LINE = 64
"""Where pages are bytes, the part of a layer begins at a multiple of so many."""


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """The group of each layer, and which plane of the group's pages is the layer's."""

    windows: tuple[int, ...]
    """Per group, how many of its last tokens, itself included, a token sees; 0 means all."""
    of: tuple[int, ...]
    """Per layer its group."""
    planes: tuple[int, ...]
    """Per layer. Layers without pages share the last one, which is empty."""

    def __str__(self) -> str:
        """One phrase for a log line."""
        seen = Counter("all tokens" if not w else f"the last {w}" for w in self.windows)
        kinds = (what if n == 1 else f"{what} ({n} groups)" for what, n in seen.items())
        count = len(self.windows)
        return f"{count} group{'s' * (count > 1)} of layers that see {', '.join(kinds)}"


def one_group(spec: Decoder, page_size: int) -> LayerGroups:
    """All layers in one group, which lets go of what none of them sees."""
    layers, spans = len(spec.layers), set(_spans(spec, page_size).values())
    window = 0 if 0 in spans else max(spans, default=0)
    return LayerGroups((window,), (0,) * layers, tuple(range(layers)))


def page_groups(
    spec: Decoder, page_size: int, dtype: torch.dtype, codes: KVCodes | None = None
) -> LayerGroups:
    """The groups of a model with such pages: several where layers see differently far back."""
    spans = _spans(spec, page_size)
    if len(set(spans.values())) < 2:
        return one_group(spec, page_size)
    sizes = _parts(layer_bytes(spec, page_size, dtype, codes))
    kinds = defaultdict[_Kind, list[int]](list)
    for layer, span in spans.items():
        kinds[_Kind(span, sizes[layer])].append(layer)
    # Those that see most come first: what they keep is most of a long sequence.
    order = sorted(kinds, key=lambda kind: (kind.span > 0, -kind.span, -kind.size))
    # A state is so large that a layer with one may be a group.
    most = _MOST_GROUPS + len(state_shapes(spec))
    size = _size([(kind, len(kinds[kind])) for kind in order], most)
    windows, of, planes = list[int](), [0] * len(sizes), dict[int, int]()
    for kind in order:
        num_groups = -(-len(kinds[kind]) // (size // kind.size))
        for number, layer in enumerate(kinds[kind]):
            planes[layer], group = divmod(number, num_groups)
            of[layer] = len(windows) + group
        windows += [kind.span] * num_groups
    empty = max(planes.values()) + 1
    numbers = tuple(planes.get(layer, empty) for layer in range(len(sizes)))
    return LayerGroups(tuple(windows), tuple(of), numbers)


def are_alike(spec: Decoder, groups: LayerGroups, shapes: Sequence[PageShape]) -> bool:
    """Whether what layers keep has one shape in each plane, in whichever group they are, and there
    are no states beside it."""
    planes = groups.planes if shapes else ()
    return not state_shapes(spec) and len(set(zip(planes, shapes, strict=True))) == len(set(planes))


def plane_shapes(groups: LayerGroups, shapes: Sequence[PageShape]) -> list[PageShape]:
    """The shapes of a page's planes, given those that layers have of it; all `are_alike`."""
    of = dict(zip(groups.planes, shapes, strict=True)) if shapes else {}
    return [of[plane] for plane in sorted(of)]


def offsets(groups: LayerGroups, sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where the part of each layer begins in a page of its group, and the bytes of a page."""
    starts, ends = list[int](), [0] * len(groups.windows)
    for group, part in zip(groups.of, _parts(sizes), strict=True):
        starts.append(ends[group])
        ends[group] += part
    return starts, max(ends)


def group_bytes(
    spec: Decoder,
    groups: LayerGroups,
    page_size: int,
    dtype: torch.dtype,
    codes: KVCodes | None = None,
) -> int:
    """Bytes that one page of `page_size` tokens takes over all layers of a group."""
    shapes = page_shapes(spec, page_size, codes)
    if not are_alike(spec, groups, shapes):
        return offsets(groups, layer_bytes(spec, page_size, dtype, codes))[1]
    numbers = sum(map(math.prod, plane_shapes(groups, shapes)))
    return numbers * (dtype.itemsize if codes is None else 1)


class _Kind(NamedTuple):
    """Layers that see equally far back and keep as much."""

    span: int
    size: int


def _parts(sizes: Sequence[int]) -> list[int]:
    """Bytes, each rounded up to whole lines."""
    return [-(-size // _LINE) * _LINE for size in sizes]


def _spans(spec: Decoder, page_size: int) -> dict[int, int]:
    """By layer that keeps pages, how far back it sees."""
    if isinstance(spec, Encoder):
        return {}
    mixers = enumerate(mixer for mixer, _ in spec.layers)
    return {layer: _span(mixer, page_size) for layer, mixer in mixers if mixer is not None}


def _span(mixer: Mixer, page_size: int) -> int:
    """The last tokens that a token sees, itself included, at most; 0 means all."""
    if isinstance(mixer, LatentAttention):
        return 0
    if isinstance(mixer, Recurrent):
        return mixer.span(page_size)
    limits = [limit for limit in (mixer.window, mixer.chunk) if limit is not None]
    return min(limits, default=0)


def _size(kinds: Sequence[tuple[_Kind, int]], most: int) -> int:
    """Bytes per page, given how many layers there are of each kind: of those that make few enough
    groups, the number that leaves least empty where tokens see most, then in all groups, then makes
    the fewest groups; few enough is `most`."""
    furthest = kinds[0][0].span

    def groups(size: int) -> list[int]:
        return [-(-count // (size // kind.size)) for kind, count in kinds]

    def cost(size: int) -> tuple[int, int, int]:
        made = groups(size)
        empty = (
            of * size - count * kind.size
            for of, (kind, count) in zip(made, kinds, strict=True)
            if kind.span == furthest
        )
        return sum(empty), sum(made) * size, sum(made)

    least = max(kind.size for kind, _ in kinds)
    sizes = {number * kind.size for kind, count in kinds for number in range(1, count + 1)}
    sizes = {size for size in sizes if size >= least}
    few = [size for size in sizes if sum(groups(size)) <= most]
    return min(few or [max(sizes)], key=cost)
