"""Where the texts of a step lie on its flat token axis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of equal length: so nothing is padded, and nothing needs a mask."""

    length: int
    tokens: Tensor | None
    """int64 [R * length]: where their tokens are on the flat axis; None when they are all of it."""


def by_length(counts: Sequence[int], device: torch.device) -> tuple[Texts, ...]:
    """The texts of a step by length; `counts` are their tokens, in the order of the flat axis."""
    starts = defaultdict[int, list[int]](list)
    first = 0
    for count in counts:
        starts[count].append(first)
        first += count
    if len(starts) == 1:
        return (Texts(counts[0], None),)
    return tuple(
        Texts(length, (torch.tensor(rows)[:, None] + torch.arange(length)).flatten().to(device))
        for length, rows in starts.items()
    )
