"""Calls of kernels that are taken down and made again."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import pytest
import torch

from baton_worker.kernels.cpu.call_recorder import (
    Call,
    CallRecording,
    Extent,
    Kernel,
    listening,
)
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.norm import CpuNorm

pytestmark = pytest.mark.skipif(
    CallRecording.refuses() is not None, reason=str(CallRecording.refuses())
)
ROWS, WIDTH = 6, 24


def layer() -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """A norm and a product with a residual: the result, and what must live as long as a tape."""
    torch.manual_seed(0)
    norm = CpuNorm(
        torch.rand(WIDTH), None, size=WIDTH, eps=1e-5, dtype=torch.float32, centered=False
    )
    product = CpuLinear(torch.randn(WIDTH, WIDTH), None)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed = norm(x)
        return product(normed, x), normed

    return run


def test_calls_are_made_again_on_what_memory_holds_now() -> None:
    run, x, calls = layer(), torch.randn(ROWS, WIDTH), list[Call]()
    with listening(calls.append):
        y, _between = run(x)
    tape, other = CallRecording(calls, Extent.decode(ROWS)), torch.randn(ROWS, WIDTH)
    wanted, before = run(other)[0], y.zero_().clone()
    x.copy_(other)
    tape.replay(Extent.decode(2))
    assert torch.equal(y[:2], wanted[:2]) and torch.equal(y[2:], before[2:])
    tape.replay(Extent.decode(ROWS))
    assert torch.equal(y, wanted)


def test_rows_may_be_counted_in_parts() -> None:
    """As of the heads of tokens, each normed by itself."""
    norm = CpuNorm(None, None, size=8, eps=1e-5, dtype=torch.float32, centered=False)
    x, calls = torch.randn(ROWS, 3, 8), list[Call]()
    wanted = norm(x)
    with listening(calls.append):
        y = norm(x)
    y.zero_()
    CallRecording(calls, Extent.decode(ROWS)).replay(Extent.decode(4))
    assert torch.equal(y[:4], wanted[:4]) and not y[4:].any()


def test_who_watches_sees_a_replay_get_on() -> None:
    """From within: a step of a large model takes longer than a scheduler waits."""
    seen, kind = list[int](), ctypes.CFUNCTYPE(None, ctypes.c_int64)
    function = kind(lambda _: seen.append(CallRecording.made()))
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    before = CallRecording.made()
    CallRecording([Call(address, 0, False, (2,))] * 3, Extent.decode(2)).replay(Extent.decode(1))
    assert [count - before for count in seen] == [0, 1, 2] and CallRecording.made() == before + 3


def test_what_does_not_run_for_rows_is_refused() -> None:
    norm = CpuNorm(None, None, size=8, eps=1e-5, dtype=torch.float32, centered=False)
    calls = list[Call]()
    with listening(calls.append):
        norm(torch.randn(7, 8))
    with pytest.raises(ValueError, match="something else than the tokens"):
        CallRecording(calls, Extent.decode(2))


def test_other_threads_and_other_times_are_not_listened_to() -> None:
    run, x, calls = layer(), torch.randn(ROWS, WIDTH), list[Call]()
    run(x)
    with listening(calls.append):
        thread = threading.Thread(target=run, args=(x,))
        thread.start()
        thread.join()
        assert not calls
        run(x)
    run(x)
    assert len(calls) == 2


def test_arguments_arrive_in_order_and_whole() -> None:
    """Twelve of them, wider than 32 bits, the last ones on the stack."""
    heard = list[tuple[int, ...]]()
    kind = ctypes.CFUNCTYPE(None, *(ctypes.c_int64,) * 12)
    function = kind(lambda *given: heard.append(given))
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    given = tuple((1 << 40) + number for number in range(12))
    call = Call(address, 3, False, (*given[:3], 10, *given[4:]))
    CallRecording([call], Extent.decode(5)).replay(Extent.decode(4))
    assert heard == [(*given[:3], 8, *given[4:])]


def test_a_null_pointer_is_null() -> None:
    heard, calls = list[tuple[int | None, ...]](), list[Call]()
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    function = kind(lambda *given: heard.append(given))
    with listening(calls.append):
        Kernel(function, 2, tokens=1)(None, 3)
    assert not heard, "taken down, not made"
    CallRecording(calls, Extent.decode(3)).replay(Extent.decode(2))
    assert heard == [(None, 2)]
