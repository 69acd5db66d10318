"""Steps on a CPU as recorded kernel calls, replayed without Python.

A step of a small model is a few hundred calls of some microseconds. Python needs as long between
two calls, and its own code has left the caches by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeAlias

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from baton_worker.graphs.buffer_reuse import shared
from baton_worker.graphs.capture import Recording, Run, Uncaptured
from baton_worker.kernels.cpu.call_recorder import (
    Call,
    CallRecording,
    Extent,
    listening,
)
from baton_worker.kernels.cpu.elementwise import repeat

_MADE = frozenset(f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty"))
"""Operators that make memory and write nothing."""
_LOOKED_AT = frozenset(("aten::_unsafe_view", "aten::detach"))
"""Operators that are views in all but name."""
_ELEMENTWISE = ("add", "sub", "mul", "neg", "cos", "sin", "copy_", "_to_copy", "clone", "mul_")
_LOOKED_UP = ("embedding", "index", "index_select", "floor_divide", "remainder")
_REPEATED = frozenset(f"aten::{name}" for name in (*_ELEMENTWISE, *_LOOKED_UP))
"""Operators of torch that may stand between kernels, as those before the first layer do: what they
compute of a row depends on that row, and their shapes on nothing. A model that needs another one
spends its time in torch, where a tape saves nothing."""


class Untaped(Uncaptured):
    """A step contains more than kernel calls; the message is half a sentence."""


class _Operator:
    """A recorded torch operator; it always computes the full captured extent."""

    def __init__(
        self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        self._operator, self._args, self._kwargs, self._out = operator, args, kwargs, out

    def replay(self, extent: Extent) -> None:
        """See `Recording`."""
        answer = self._operator(*self._args, **self._kwargs)
        if answer is not self._out:
            self._out.copy_(answer)

    def memory(self) -> tuple[Any, ...]:
        """Tensors that it reads or writes, nested."""
        return self._args, tuple(self._kwargs.values()), self._out


_Item: TypeAlias = Call | _Operator


class TapeRecorder:
    """Records a function; a replay runs the given numbers of tokens and rows."""

    def capture(self, run: Run, extent: Extent) -> Recording:
        """See `Recorder`.

        Raises:
            Untaped: the function does more than kernel calls and permitted operators.
        """
        items: list[_Item] = []
        watch = _Watch(items.append, extent.tokens)
        with watch, listening(items.append):
            outputs = run()
        return _Taped(items, watch.made, outputs, extent, run)


class _Taped:
    """Kernel calls and operators in order, and references that keep their buffers alive."""

    def __init__(
        self,
        items: Sequence[_Item],
        made: Sequence[Tensor],
        outputs: Sequence[Tensor],
        extent: Extent,
        run: Run,
    ) -> None:
        operators = [item for item in items if isinstance(item, _Operator)]
        reserved = set(_storages((outputs, *(operator.memory() for operator in operators))))
        own = [tensor for tensor in made if not reserved & set(_storages(tensor))]
        moved, memory = shared([item for item in items if isinstance(item, Call)], own)
        self._parts = list(_parts(items, moved, extent))
        # Operators keep their own tensors; `run` keeps those of plans and batches.
        self._keeps = memory, outputs, run

    def replay(self, extent: Extent) -> None:
        """See `Recording`."""
        for part in self._parts:
            part.replay(extent)


def _parts(
    items: Sequence[_Item], moved: Sequence[Call], extent: Extent
) -> Iterator[CallRecording | _Operator]:
    """Runs of consecutive kernel calls, each as one recording, and the operators between them."""
    after = iter(moved)
    for is_call, some in groupby(items, lambda item: isinstance(item, Call)):
        if is_call:
            yield _tape([next(after) for _ in some], extent)
        else:
            yield from (item for item in some if isinstance(item, _Operator))


def _tape(calls: list[Call], extent: Extent) -> CallRecording:
    try:
        return CallRecording(calls, extent)
    except ValueError as error:
        raise Untaped(str(error)) from error


class _Watch(TorchDispatchMode):
    """Records every torch operator that runs inside this context."""

    def __init__(self, take: Callable[[_Operator], None], tokens: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._take, self._tokens = take, tokens
        self.made: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and torch's compiler takes seconds to import."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator, and record its outputs or how to run it again."""
        kwargs = kwargs or {}
        with self:
            # Under inference_mode, operators arrive here before decomposition.
            out = func.decompose(*args, **kwargs)
        if out is not NotImplemented:
            return out
        out, name = func(*args, **kwargs), func._schema.name
        if name in _MADE:
            self.made.append(out)
        elif repeat(name.removeprefix("aten::"), args, kwargs, out, self._tokens):
            if out is not args[0]:
                self.made.append(out)
        elif name in _REPEATED:
            self._take(_Operator(func, args, kwargs, out))
        elif not func.is_view and name not in _LOOKED_AT:
            raise Untaped(f"torch computes a part of it ({name.removeprefix('aten::')})")
        return out


def _storages(of: Any) -> Iterator[int]:
    """Storage addresses of all tensors in a nested structure."""
    if isinstance(of, Tensor):
        yield of.untyped_storage().data_ptr()
    elif not isinstance(of, str | bytes) and hasattr(of, "__iter__"):
        for part in of:
            yield from _storages(part)
