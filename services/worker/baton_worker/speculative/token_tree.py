"""The shape of the drafts of a row: a tree of a fixed topology (Medusa, arXiv:2401.10774; EAGLE,
arXiv:2401.15077).

    (0,)  (1,)  (0, 0)  (0, 1)  (1, 0)        the most probable next token and the second one; what
                                              follows the first, twice, and the second, once
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate

Node = tuple[int, ...]
MOST_NODES = 63
"""With the token before them they are the bits of an int64, see `attention.tree_mask`."""


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Nodes by depth and then by rank. A node is the ranks of the tokens on the way to it, from 0:
    in the order of what the drafter holds most probable there."""

    nodes: tuple[Node, ...]

    @classmethod
    def chain(cls, length: int) -> TokenTree:
        """One node for each depth."""
        return cls(tuple((0,) * depth for depth in range(1, length + 1)))

    @classmethod
    def parse(cls, text: str) -> TokenTree:
        """A list of tuples, as vLLM's `speculative_token_tree` has it: "[(0,), (1,), (0, 0)]".

        Raises:
            ValueError: it is none, a node has no parent, or there are too many.
        """
        try:
            nodes = [tuple(map(int, node)) for node in ast.literal_eval(text)]
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            raise ValueError(
                'speculative_token_tree is a list of tuples, such as "[(0,), (1,), (0, 0)]"'
            ) from error
        tree = cls(tuple(sorted(set(nodes), key=lambda node: (len(node), node))))
        tree._check(len(nodes))
        return tree

    def _check(self, num_drafts: int) -> None:
        if num_drafts != len(self.nodes) or not 1 <= num_drafts <= MOST_NODES:
            raise ValueError(f"speculative_token_tree has 1 to {MOST_NODES} nodes, each once")
        parents = {(), *self.nodes}
        for node in self.nodes:
            if not node or min(node) < 0 or node[:-1] not in parents:
                raise ValueError(
                    f"speculative_token_tree has the node {node}, which is empty, has a negative "
                    "rank, or follows a node that is not in it"
                )

    @property
    def widths(self) -> tuple[int, ...]:
        """By depth: nodes."""
        counts = Counter(len(node) for node in self.nodes)
        return tuple(counts[depth] for depth in sorted(counts))

    @property
    def totals(self) -> tuple[int, ...]:
        """By depth: nodes down to there, that depth included."""
        return tuple(accumulate(self.widths))

    @property
    def ranks(self) -> tuple[int, ...]:
        """By depth: how many different tokens are wanted there."""
        return tuple(
            1 + max(node[-1] for node in self.nodes if len(node) == depth)
            for depth in range(1, len(self.widths) + 1)
        )

    @property
    def is_chain(self) -> bool:
        """Whether no node has a sibling."""
        return all(not any(node) for node in self.nodes)

    @property
    def follows_first(self) -> bool:
        """Whether only nodes on the way of most probable tokens have children."""
        return all(not any(node[:-1]) for node in self.nodes)
