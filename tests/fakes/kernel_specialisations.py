"""Which kernels a GPU would compile: launches are not run, but specialised as Triton does it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeAlias

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fakes.triton_interpreter import interpreter

Specialisation: TypeAlias = tuple[str, tuple[tuple[str, Any], ...], str]
"""A kernel, the type and the special value of each argument, and options of its launch: what
Triton compiles once."""


@contextmanager
def specialisations() -> Iterator[list[Specialisation]]:
    """Launches within compute nothing, and add what has not been launched before. Whatever a kernel
    would have written is 1."""
    with interpreter(), pytest.MonkeyPatch.context() as patch, _Ones():  # type: ignore[no-untyped-call]
        from triton.runtime.interpreter import InterpretedFunction

        found, seen = list[Specialisation](), set[str]()

        def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            arguments, options = _specialise(self)(*args, **kwargs)
            made = (f"{self.fn.__module__}.{self.fn.__name__}", arguments, options)
            if str(made) not in seen:
                seen.add(str(made))
                found.append(made)

        patch.setattr(InterpretedFunction, "run", run)
        yield found


@cache
def _specialise(kernel: Any) -> Any:
    """Triton's own binder of a kernel's arguments, for compute capability 9.0."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    function = JITFunction(kernel.fn, **kernel.kwargs)
    backend = make_backend(GPUTarget("cuda", 90, 32))
    bind = create_function_from_signature(function.signature, function.params, backend)

    def specialise(*args: Any, **kwargs: Any) -> tuple[tuple[tuple[str, Any], ...], str]:
        _, values, options = bind(*args, **kwargs)
        names = [parameter.name for parameter in function.params]
        return tuple(zip(names, values, strict=True)), str(options)

    return specialise


class _Ones(TorchDispatchMode):
    """Memory that nobody has written is 1, which is a token, an index, and true."""

    _EMPTY = frozenset(
        f"aten::{name}" for name in ("empty", "new_empty", "empty_like", "empty_strided")
    )

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """See `TorchDispatchMode`."""
        made = func(*args, **kwargs or {})
        if func._schema.name in self._EMPTY and made.device.type == "cpu":
            torch.ops.aten.fill_(made, 1)
        return made
