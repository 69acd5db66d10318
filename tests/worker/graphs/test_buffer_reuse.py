"""Memory that the calls of a step share."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from baton_worker.graphs.buffer_reuse import shared
from baton_worker.kernels.cpu.call_recorder import Call


def call(*arguments: Tensor | int) -> Call:
    numbers = (x.data_ptr() if isinstance(x, Tensor) else x for x in arguments)
    return Call(1, 0, False, (3, *numbers))


def memory(size: int = 100) -> Tensor:
    return torch.empty(size, dtype=torch.uint8)


def test_what_was_read_for_the_last_time_is_written_next() -> None:
    a, b, c = memory(), memory(), memory()
    moved, whole = shared([call(a), call(a, b), call(b, c)], [a, b, c])
    assert moved[2].arguments[2] == moved[0].arguments[1], "c takes the place of a"
    assert moved[1].arguments[2] not in moved[0].arguments
    assert whole.nbytes < 300
    start = whole.data_ptr()
    addresses = [x for one in moved for x in one.arguments[1:]]
    assert all(start <= x <= start + whole.nbytes - 100 for x in addresses)


def test_only_what_is_named_moves() -> None:
    a, weight, other = memory(), memory(), memory()
    [moved], _ = shared([call(weight, 7, a[40:], 0)], [a, other])
    first, *rest = moved.arguments[1:3]
    assert (first, rest) == (weight.data_ptr(), [7]) and moved.arguments[4] == 0
    assert moved.arguments[3] != a.data_ptr() + 40
    assert (moved.arguments[3] - 40) % 64 == 0, "its place within its memory stays"


def test_two_that_are_in_use_at_one_time_never_overlap() -> None:
    chance = random.Random(0)
    for _ in range(50):
        made = [memory(chance.randrange(1, 500)) for _ in range(chance.randrange(1, 12))]
        calls = [
            call(*chance.sample(made, chance.randrange(1, min(4, len(made)) + 1))) for _ in range(9)
        ]
        moved, _ = shared(calls, made)
        spans = dict[int, tuple[int, int, int]]()
        for number, (old, new) in enumerate(zip(calls, moved, strict=True)):
            for before, after in zip(old.arguments[1:], new.arguments[1:], strict=True):
                assert spans.get(before, (after,))[0] == after, "one place each"
                first = spans[before][1] if before in spans else number
                spans[before] = (after, first, number)
        size = {tensor.data_ptr(): tensor.nbytes for tensor in made}
        used = [(at, at + size[old], first, last) for old, (at, first, last) in spans.items()]
        for one in used:
            for two in used:
                together = one[2] <= two[3] and two[2] <= one[3]
                assert one is two or not together or one[1] <= two[0] or two[1] <= one[0]
