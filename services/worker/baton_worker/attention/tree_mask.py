"""Masks for rows whose new tokens form a tree: candidates of speculative decoding (SpecInfer, Miao
et al. 2024, arXiv:2305.09781), where one step verifies every branch.

    number     0 --- 1 --- 3      parent      -1   0    0     1      2
                \\--- 2 --- 4      depth        0   1    1     2      2
                                  ancestors    1  11  101  1011  10101

A token attends to the keys from before the step, its ancestors and itself. Its position follows
from its depth; its key is stored in the order of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MOST_TOKENS = 64
"""New tokens of a row that is a tree: one bit each."""
AHEAD = 1 << 30
"""The position of a key that a token does not see."""
_CHAIN = -1
"""All bits: every earlier token is an ancestor."""


@dataclass(frozen=True, slots=True)
class TreeMask:
    """Ancestors and depths of the new tokens of a step, on its flat token axis."""

    ancestors: Tensor
    """int64 [T]: bit j says that new token j of the row is seen. A token beyond `MOST_TOKENS`,
    which no bit stands for, is seen by all that come later."""
    depths: Tensor
    """int32 [T]: how many new tokens a token follows."""

    @classmethod
    def build(
        cls,
        counts: Sequence[int],
        parents: Sequence[Sequence[int] | None],
        device: torch.device,
    ) -> TreeMask:
        """Build from the parents of each row's new tokens.

        Args:
            counts: new tokens per row.
            parents: per row None (a chain), or the number of each new token's parent; -1 for the
                last cached token.
            device: where the tensors go.

        Raises:
            ValueError: a tree has too many tokens, or a parent after its child.
        """
        rows = [
            _chain(count) if tree is None else _tree(tree, count)
            for count, tree in zip(counts, parents, strict=True)
        ]
        ancestors, depths = (np.concatenate(part) for part in zip(*rows, strict=True))
        return cls(
            torch.from_numpy(ancestors.astype(np.int64)).to(device),
            torch.from_numpy(depths.astype(np.int32)).to(device),
        )

    def places(self, tokens: Tensor, start: int, length: int) -> Tensor:
        """Position of each key of a row for each of its new tokens; `AHEAD` where it is masked.

        Args:
            tokens: int64 [n], the row's new tokens on the flat axis.
            start: keys from before the step.
            length: number of keys, at least all of the row; further ones are masked.

        Returns:
            int64 [n, length].
        """
        ancestors, depths = self.ancestors[tokens], self.depths[tokens].long()
        number = torch.arange(len(depths), device=depths.device)
        is_ancestor = (ancestors[:, None] >> number.clamp_max(MOST_TOKENS - 1)) & 1 > 0
        is_ancestor |= number >= MOST_TOKENS
        places = torch.arange(length, device=depths.device).repeat(len(depths), 1)
        places[:, start : start + len(depths)] = torch.where(is_ancestor, start + depths, AHEAD)
        return places


def _chain(count: int) -> tuple[list[int], list[int]]:
    return [_CHAIN] * count, list(range(count))


def _tree(parents: Sequence[int], count: int) -> tuple[list[int], list[int]]:
    if len(parents) != count or count > MOST_TOKENS:
        raise ValueError(
            f"A tree of {len(parents)} tokens for {count} new ones: it has one parent for each of "
            f"at most {MOST_TOKENS}."
        )
    ancestors, depths = list[int](), list[int]()
    for number, parent in enumerate(parents):
        if not -1 <= parent < number:
            raise ValueError(
                f"Token {number} of a tree follows token {parent}, which is not before it."
            )
        ancestors.append((ancestors[parent] if parent >= 0 else 0) | 1 << number)
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    # The highest bit is the sign of an int64.
    return [bits - (1 << 64) if bits >> 63 else bits for bits in ancestors], depths
