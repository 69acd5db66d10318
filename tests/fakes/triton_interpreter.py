"""Triton's interpreter: kernels for GPUs, run on a CPU one program after the other."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

PACKAGE = "baton_worker.kernels.triton"
USERS = "tests.fakes.triton_kernels"


@contextmanager
def interpreter() -> Iterator[None]:
    """Kernels of `PACKAGE` are interpreted within, unless this machine has a GPU to run them.

    Whether a function is compiled is settled when it is defined, also in triton's own library. So
    both are defined again if somebody has imported them before.
    """
    if torch.cuda.is_available():
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        _interpret_library()
        _widen_products(patch)
        _patch_once(patch)
        _check_overflow_in_numpy(patch)
        _remember_dtypes(patch)
        for name in [n for n in sys.modules if n.startswith((f"{PACKAGE}.", USERS))]:
            importlib.reload(sys.modules[name])
        yield


def _widen_products(patch: pytest.MonkeyPatch) -> None:
    """Sums of products as a GPU's: of numbers, and the same wherever in a tile a row stands.

    The interpreter keeps bfloat16 as integers of its bits, and multiplies those. And numpy's
    product may sum a row in another order than the row below it: float64 has room for both.
    """
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    plain = InterpreterBuilder.create_dot

    def widened(handle: TensorHandle) -> TensorHandle:
        numbers = handle.data
        if handle.dtype.scalar is tl.bfloat16:
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        return TensorHandle(numbers.astype(np.float64), tl.float64)

    def create_dot(
        self: Any, a: TensorHandle, b: TensorHandle, total: TensorHandle, *others: Any
    ) -> TensorHandle:
        product = plain(self, widened(a), widened(b), widened(total), *others)
        return TensorHandle(product.data.astype(total.data.dtype), total.dtype.scalar)

    patch.setattr(InterpreterBuilder, "create_dot", create_dot)


def _patch_once(patch: pytest.MonkeyPatch) -> None:
    """What a kernel calls finds triton's language as the launch has patched it. To look through all
    of its members again would take longer than what most of those functions do."""
    import triton.language as tl
    from triton.runtime import interpreter

    plain = interpreter._patch_lang

    @cache
    def languages(function: Any) -> list[Any]:
        known = [id(value) for value in function.__globals__.values()]
        return [language for language in (tl, tl.core) if id(language) in known]

    def patch_lang(function: Any) -> Any:
        members = tl.tensor.__add__, *(language.load for language in languages(function))
        if any(map(tl.core.is_builtin, members)):
            return plain(function)
        return interpreter._LangPatchScope()

    patch.setattr(interpreter, "_patch_lang", patch_lang)


def _check_overflow_in_numpy(patch: pytest.MonkeyPatch) -> None:
    """Signed integers that overflow are an error. The interpreter makes some ten of Triton's
    operations to find that of each sum and product, and then drops what it found."""
    from triton.language.semantic import TritonSemantic

    operations = {"add": np.add, "sub": np.subtract, "mul": np.multiply}

    def check(self: Any, left: Any, right: Any, operation: Any) -> None:
        kind = left.type.scalar
        if kind.int_bitwidth >= 64 or kind.is_int_unsigned():
            return
        wide = (value.handle.data.astype(np.int64) for value in (left, right))
        exact = operations[operation.__name__](*wide)
        fits = kind.get_int_min_value() <= exact.min() and exact.max() <= kind.get_int_max_value()
        assert fits, f"{kind} overflows in {operation.__name__}"

    patch.setattr(TritonSemantic, "binary_op_sanitize_overflow_impl", check)


def _remember_dtypes(patch: pytest.MonkeyPatch) -> None:
    """numpy's dtype of a tensor comes from a dictionary that the interpreter makes at each call."""
    import triton.language as tl
    from triton.runtime import interpreter

    of_scalar, pointer = cache(interpreter._get_np_dtype), np.dtype(np.uint64)

    def dtype_of(kind: Any) -> Any:
        return pointer if isinstance(kind.scalar, tl.pointer_type) else of_scalar(kind.scalar)

    patch.setattr(interpreter, "_get_np_dtype", dtype_of)


def _interpret_library() -> None:
    import triton.language as tl
    from triton.language import standard
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    for name, function in list(vars(standard).items()):
        if isinstance(function, JITFunction):
            made = InterpretedFunction(function.fn)
            for module in (standard, tl, tl.core):
                if getattr(module, name, None) is function:
                    setattr(module, name, made)
