"""Softmax whose scores come block by block (Dao 2023, arXiv:2307.08691)."""

from __future__ import annotations

import triton
import triton.language as tl

HIDDEN = tl.constexpr(float("-inf"))
"""The score of a key that a query does not see."""


@triton.jit
def weigh(most, total, score):
    """The greatest score and the sum of weights with a block of scores more, the factor on what was
    weighed before, and the block's weights."""
    above = tl.maximum(most, tl.max(score, 1))
    # Nothing seen yet is -inf, and -inf - -inf is no number: measured from 0 it weighs 0.
    base = tl.where(above == HIDDEN, 0.0, above)
    fade, weight = tl.exp(most - base), tl.exp(score - base[:, None])
    return above, total * fade + tl.sum(weight, 1), fade, weight


@triton.jit
def shares(most, one):
    """The greatest score of two partitions, and the factors on what each has weighed."""
    above = tl.maximum(most, one)
    base = tl.where(above == HIDDEN, 0.0, above)
    return above, tl.exp(most - base), tl.exp(one - base)


@triton.jit
def with_sink(most, total, sink):
    """The greatest score, the sum of weights and the factor on what was weighed, after one more
    score without a value."""
    above = tl.maximum(most, sink)
    fade = tl.exp(most - above)
    return above, total * fade + tl.exp(sink - above), fade
