"""Softmax whose scores come block by block (Dao 2023, arXiv:2307.08691)."""

from __future__ import annotations

import triton
import triton.language as tl

HIDDEN = tl.constexpr(float("-inf"))
"""The score of a key that a query does not see."""


@triton.jit
def weigh(maximum, total, score):
    """The greatest score and the sum of weights with a block of scores more, the factor on what was
    weighed before, and the block's weights."""
    new_maximum = tl.maximum(maximum, tl.max(score, 1))
    # Nothing seen yet is -inf, and -inf - -inf is no number: measured from 0 it weighs 0.
    base = tl.where(new_maximum == HIDDEN, 0.0, new_maximum)
    fade, weight = tl.exp(maximum - base), tl.exp(score - base[:, None])
    return new_maximum, total * fade + tl.sum(weight, 1), fade, weight


@triton.jit
def shares(maximum, other):
    """The greatest score of two partitions, and the factors on what each has weighed."""
    new_maximum = tl.maximum(maximum, other)
    base = tl.where(new_maximum == HIDDEN, 0.0, new_maximum)
    return new_maximum, tl.exp(maximum - base), tl.exp(other - base)


@triton.jit
def with_sink(maximum, total, sink):
    """The greatest score, the sum of weights and the factor on what was weighed, after one more
    score without a value."""
    new_maximum = tl.maximum(maximum, sink)
    fade = tl.exp(maximum - new_maximum)
    return new_maximum, total * fade + tl.exp(sink - new_maximum), fade
