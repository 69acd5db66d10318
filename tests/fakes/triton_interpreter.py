"""Triton's interpreter: kernels for GPUs, run on a CPU one program after the other."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
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
        _remember_shapes(patch)
        _leave_equal_shapes(patch)
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


def _remember_shapes(patch: pytest.MonkeyPatch) -> None:
    """Blocks of one shape share the objects that describe it. The interpreter makes and checks them
    for every tensor, which takes longer than what it computes."""
    import triton.language as tl
    from triton.language.core import constexpr
    from triton.language.core import tuple as tuple_of

    checked, described = tl.block_type.__init__, cache(_description)
    known: dict[tuple[int, ...], tuple[tuple_of, int]] = {}

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        numbers = tuple([n.value if type(n) is constexpr else n for n in shape])
        if numbers not in known:
            checked(self, element_ty, shape)
            known[numbers] = self.shape, self.numel
        self.element_ty = element_ty
        self.shape, self.numel = known[numbers]

    def tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = described(*(type.shape if type.is_block() else ()))

    name = cached_property(lambda self: f"<{self.shape}, {self.element_ty}>")
    name.__set_name__(tl.block_type, "name")
    patch.setattr(tl.block_type, "name", name, raising=False)
    patch.setattr(tl.block_type, "__init__", block)
    patch.setattr(tl.tensor, "__init__", tensor)


def _description(*shape: int) -> tuple[Any, Any]:
    """Number of elements and shape of a tensor, in Triton's constants."""
    from triton.language.core import constexpr
    from triton.language.core import tuple as tuple_of

    return constexpr(math.prod(shape)), tuple_of([constexpr(n) for n in shape])


def _leave_equal_shapes(patch: pytest.MonkeyPatch) -> None:
    """Operands of one shape need no broadcast: most are such."""
    from triton.language.semantic import TritonSemantic

    plain = TritonSemantic.broadcast_impl_value

    def broadcast(self: Any, left: Any, right: Any) -> tuple[Any, Any]:
        blocks = left.type.is_block(), right.type.is_block()
        if blocks == (False, False):
            return left, right
        if all(blocks) and left.type.shape.values == right.type.shape.values:
            return left, right
        pair: tuple[Any, Any] = plain(self, left, right)
        return pair

    patch.setattr(TritonSemantic, "broadcast_impl_value", broadcast)


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
