"""Assignment of position axes to the channels of a head, for ropes with several axes.

    sizes 4 2 2, by pair     runs     0 0 0 0 1 1 2 2      Qwen2-VL: time, height, width
                             cycled   0 1 2 0 1 2 0 0      Qwen3-VL
    sizes 2 3 3              balanced 0 1 2 1 2 1 2 0    openPangu-VL
    sizes 3 3 2              grid     1 2 1 2 1 2 0 0      ERNIE 4.5 VL: height, width, time

`doubled` (Hunyuan-VL in transformers) counts channels instead of pairs: with sizes 1 1 1 1, the
first channels of the four pairs use axes 0 0 1 1 and the second ones 2 2 3 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.spec import Sections


def axes_of(sections: Sections, dim: int) -> list[Tensor]:
    """Axes of the first and second channel of each pair, int64 [dim / 2] each; one tensor if both
    are equal.

    Raises:
        ModelError: the layout is unknown, or the sizes do not add up to `dim` channels.
    """
    if sections.layout not in LAYOUTS:
        known = ", ".join(LAYOUTS)
        raise ModelError(f"Rope layout '{sections.layout}' is not supported. Known: {known}.")
    if sum(sections.sizes) != dim // 2:
        raise ModelError(
            f"The sections {list(sections.sizes)} of a rope are {sum(sections.sizes)} pairs of "
            f"channels, but a head has {dim // 2}."
        )
    axes = torch.tensor(LAYOUTS[sections.layout](sections.sizes))
    return [*torch.split(axes, dim // 2)]


def runs(sizes: Sequence[int]) -> list[int]:
    """One axis after the other (M-RoPE, arXiv:2409.12191)."""
    return [axis for axis, size in enumerate(sizes) for _ in range(size)]


def backwards(sizes: Sequence[int]) -> list[int]:
    """`runs` from the last axis to the first (Llama 4's images: columns, then rows)."""
    return [len(sizes) - 1 - axis for axis in runs(sizes[::-1])]


def crossed(sizes: Sequence[int]) -> list[int]:
    """The second and the first axis in turn (MoonViT: columns and rows)."""
    return [1, 0] * sizes[0]


def cycled(sizes: Sequence[int]) -> list[int]:
    """Axes in turn while they have pairs left; then the first axis (Qwen3-VL, arXiv:2511.21631)."""
    turns = ((pair, pair % len(sizes)) for pair in range(sum(sizes)))
    return [axis if pair < sizes[axis] * len(sizes) else 0 for pair, axis in turns]


def balanced(sizes: Sequence[int]) -> list[int]:
    """The axis that is behind its share, but not the last one again while others have pairs left;
    the first axis has the last pair (openPangu-VL)."""
    counts, order = [sizes[0] - 1, *sizes[1:]], list[int]()
    while len(order) < sum(counts):
        remaining = [axis for axis, count in enumerate(counts) if order.count(axis) < count]
        others = [axis for axis in remaining if axis not in order[-1:]] or remaining
        order.append(min(others, key=lambda axis: (order.count(axis) / counts[axis], axis)))
    return [*order, 0]


def grid(sizes: Sequence[int]) -> list[int]:
    """Height and width in turn, then time, which is the first axis but the last size (ERNIE 4.5
    VL)."""
    if len(sizes) != 3 or sizes[0] != sizes[1]:
        raise ModelError(
            f"The sections {list(sizes)} of a rope are not those of height, width and time, the "
            "first two alike."
        )
    return [1, 2] * sizes[0] + [0] * sizes[2]


def doubled(sizes: Sequence[int]) -> list[int]:
    """One axis after the other over the channels of a head: `runs` of twice the sizes."""
    return runs([2 * size for size in sizes])


LAYOUTS: dict[str, Callable[[Sequence[int]], list[int]]] = {
    "runs": runs,
    "cycled": cycled,
    "grid": grid,
    "doubled": doubled,
    "balanced": balanced,
    "reversed": backwards,
    "crossed": crossed,
}
"""Functions from sizes to the axis of each pair of channels, or of each channel."""
