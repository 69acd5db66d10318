"""KV cache groups: the layers that share a block table.

Layers with the same attention window form one group, or several of equally many layers: then a page
of any group has the same shape, and one pool of page numbers serves all groups. Example: Gemma 3,
where five of every six layers have a sliding window:

    layer    0  1  2  3  4  5   6  7  8  9 10 11        a page of group 2, with layers 1 and 7:
    group    1  2  3  4  5  0   1  2  3  4  5  0           plane 0: its tokens in layer 1
    plane    0  0  0  0  0  0   1  1  1  1  1  1           plane 1: its tokens in layer 7

A group with fewer layers leaves a plane of its pages unused. If layers differ in the shape of their
state, a page is a fixed number of bytes, divided among the layers of a group. Example: LFM2, where
18 of 24 layers keep convolution inputs, twice as wide as the KV of the other six:

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

from baton_worker.kernels.kv_codes import KVCodes
from baton_worker.kv_cache.page_shapes import (
    PageShape,
    layer_bytes,
    page_shapes,
    state_shapes,
)
from baton_worker.spec import (
    Attention,
    CrossAttention,
    Decoder,
    Encoder,
    KVReuse,
    LatentAttention,
    Recurrent,
)

_MOST_GROUPS = 8
"""Most groups; a sequence needs one page of each group per block."""
_LINE = 64
"""Alignment in bytes of each layer's part of a page."""


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """The group of each layer, and the plane of the group's pages that holds the layer."""

    windows: tuple[int, ...]
    """Per group, the attention window in tokens, the query token included; 0: unlimited."""
    of: tuple[int, ...]
    """Group of each layer."""
    planes: tuple[int, ...]
    """Plane of each layer. Layers without pages share the last one, which is empty."""

    def __str__(self) -> str:
        """One phrase for a log line."""
        counts = Counter("all tokens" if not w else f"the last {w}" for w in self.windows)
        kinds = (kind if n == 1 else f"{kind} ({n} groups)" for kind, n in counts.items())
        count = len(self.windows)
        return f"{count} group{'s' * (count > 1)} of layers that see {', '.join(kinds)}"


def one_group(spec: Decoder, page_size: int) -> LayerGroups:
    """All layers in one group. Pages outside the widest window are freed."""
    layers, spans = len(spec.layers), set(_spans(spec, page_size).values())
    window = 0 if 0 in spans else max(spans, default=0)
    return LayerGroups((window,), (0,) * layers, tuple(range(layers)))


def page_groups(
    spec: Decoder, page_size: int, dtype: torch.dtype, codes: KVCodes | None = None
) -> LayerGroups:
    """The KV cache groups of a model: several if its layers have different windows."""
    spans = _spans(spec, page_size)
    if len(set(spans.values())) < 2:
        return one_group(spec, page_size)
    sizes = _parts(layer_bytes(spec, page_size, dtype, codes))
    kinds = defaultdict[_Kind, list[int]](list)
    for layer, span in spans.items():
        kinds[_Kind(span, sizes[layer])].append(layer)
    # Widest window first: these layers hold most of the KV of a long sequence.
    order = sorted(kinds, key=lambda kind: (kind.span > 0, -kind.span, -kind.size))
    # States are large enough that a single layer with one may form a group.
    most = _MOST_GROUPS + len(state_shapes(spec))
    size = _size([(kind, len(kinds[kind])) for kind in order], most)
    windows, of, planes = list[int](), [0] * len(sizes), dict[int, int]()
    for kind in order:
        num_groups = -(-len(kinds[kind]) // (size // kind.size))
        for number, layer in enumerate(kinds[kind]):
            planes[layer], group = divmod(number, num_groups)
            of[layer] = len(windows) + group
        windows += [kind.span] * num_groups
    for layer, (mixer, _) in enumerate(spec.layers):
        if isinstance(mixer, KVReuse):
            of[layer] = of[mixer.source]
    empty = max(planes.values()) + 1
    numbers = tuple(planes.get(layer, empty) for layer in range(len(sizes)))
    return LayerGroups(tuple(windows), tuple(of), numbers)


def held_groups(groups: LayerGroups, spec: Decoder) -> LayerGroups:
    """The groups of all layers of a model, for the pages of a stage that has some: the same groups;
    a page holds only the layers of this stage. `spec` is that of the stage."""
    if spec.stage is None:
        return groups
    num_layers, planes = Counter[int](), dict[int, int]()
    for layer in _spans(spec, 1):
        planes[layer] = num_layers[groups.of[layer]]
        num_layers[groups.of[layer]] += 1
    empty = max(planes.values(), default=-1) + 1
    numbers = tuple(planes.get(layer, empty) for layer in range(len(groups.of)))
    return LayerGroups(groups.windows, groups.of, numbers)


def are_alike(spec: Decoder, groups: LayerGroups, shapes: Sequence[PageShape]) -> bool:
    """Whether every plane has the same shape in all groups, and no layer has states."""
    planes = groups.planes if shapes else ()
    return not state_shapes(spec) and len(set(zip(planes, shapes, strict=True))) == len(set(planes))


def plane_shapes(groups: LayerGroups, shapes: Sequence[PageShape]) -> list[PageShape]:
    """Shapes of a page's planes, from the page shapes of the layers, which must be `are_alike`."""
    of = dict(zip(groups.planes, shapes, strict=True)) if shapes else {}
    return [of[plane] for plane in sorted(of)]


def offsets(groups: LayerGroups, sizes: Sequence[int]) -> tuple[list[int], int]:
    """Byte offset of each layer within a page of its group, and the bytes of a page."""
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
    """Layers with the same window and the same bytes per page."""

    span: int
    size: int


def _parts(sizes: Sequence[int]) -> list[int]:
    """Sizes in bytes, each rounded up to whole cache lines."""
    return [-(-size // _LINE) * _LINE for size in sizes]


def _spans(spec: Decoder, page_size: int) -> dict[int, int]:
    """Attention window by layer, for the layers that keep pages."""
    if isinstance(spec, Encoder):
        return {}
    mixers = enumerate(mixer for mixer, _ in spec.layers)
    return {
        layer: _span(mixer, page_size)
        for layer, mixer in mixers
        if not (mixer is None or isinstance(mixer, CrossAttention | KVReuse))
    }


def _span(mixer: Attention | LatentAttention | Recurrent, page_size: int) -> int:
    """Attention window of a mixer in tokens, the query token included; 0: unlimited."""
    if isinstance(mixer, LatentAttention):
        return 0
    if isinstance(mixer, Recurrent):
        return mixer.span(page_size)
    mask = mixer.mask
    limits = [limit for limit in (mask.window, mask.chunk) if limit is not None]
    return min(limits, default=0)


def _size(kinds: Sequence[tuple[_Kind, int]], most: int) -> int:
    """Bytes per page, given the number of layers of each kind. Considers the sizes that make at
    most `most` groups, and minimizes in this order: unused bytes in the groups with the widest
    window, unused bytes in all groups, number of groups."""
    furthest = kinds[0][0].span

    def groups(size: int) -> list[int]:
        return [-(-count // (size // kind.size)) for kind, count in kinds]

    def cost(size: int) -> tuple[int, int, int]:
        counts = groups(size)
        empty = (
            of * size - count * kind.size
            for of, (kind, count) in zip(counts, kinds, strict=True)
            if kind.span == furthest
        )
        return sum(empty), sum(counts) * size, sum(counts)

    least = max(kind.size for kind, _ in kinds)
    sizes = {number * kind.size for kind, count in kinds for number in range(1, count + 1)}
    sizes = {size for size in sizes if size >= least}
    fitting = [size for size in sizes if sum(groups(size)) <= most]
    return min(fitting or [max(sizes)], key=cost)
