"""Positions of whole texts on the flat token axis of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of equal length, so that neither padding nor a mask is needed."""

    length: int
    tokens: Tensor | None
    """int64 [R * length]: their tokens on the flat axis; None if these are all tokens of the
    step."""
    is_key: Tensor | None = None
    """bool [R, length]: whether each token is a key; None if all are."""


def by_length(
    counts: Sequence[int], device: torch.device, is_key: Tensor | None = None
) -> tuple[Texts, ...]:
    """Group the texts of a step by length; `counts` are tokens per text in flat-axis order,
    `is_key` is bool [T], see `Texts`."""
    starts = defaultdict[int, list[int]](list)
    first = 0
    for count in counts:
        starts[count].append(first)
        first += count
    if len(starts) == 1:
        return (Texts(counts[0], None, None if is_key is None else is_key.view(-1, counts[0])),)
    groups = []
    for length, rows in starts.items():
        tokens = (torch.tensor(rows)[:, None] + torch.arange(length)).flatten().to(device)
        keys = None if is_key is None else is_key[tokens].view(-1, length)
        groups.append(Texts(length, tokens, keys))
    return tuple(groups)


def lengths_of(texts: Sequence[Texts], num_tokens: int) -> list[int]:
    """The lengths of all texts of a step of so many tokens, in flat-axis order."""
    if len(texts) == 1:
        return [texts[0].length] * (num_tokens // texts[0].length)
    starts = list[tuple[int, int]]()
    for same in texts:
        assert same.tokens is not None
        starts += [(first, same.length) for first in same.tokens[:: same.length].tolist()]
    return [length for _, length in sorted(starts)]
