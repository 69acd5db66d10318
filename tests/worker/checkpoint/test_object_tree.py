"""Objects as plain values and back: those of the worker's own classes, and no others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from baton_worker.checkpoint.object_tree import NotDescribed, object_of, tree_of
from baton_worker.kernels.fp8 import Fp8Stack, Inputs
from baton_worker.kernels.linear import PlainLinear, choose
from baton_worker.kernels.packed_weights import PackedWeights

TENSORS = {"a": torch.ones(2), "b": torch.zeros(3)}


def name(value: Any) -> list[Any] | None:
    return next(([key] for key, known in TENSORS.items() if known is value), None)


def through(value: Any) -> Any:
    """What another process reads."""
    data = msgspec.msgpack.encode(tree_of(value, name))
    return object_of(msgspec.msgpack.decode(data), lambda given: TENSORS[given[0]])


def test_values_come_back_as_they_were() -> None:
    a, b = TENSORS.values()
    plain = [1, 0.5, "x", b"y", None, True, (1, [2]), {"k": (3,), 4: "v"}]
    types = [torch.Size((2, 3)), torch.bfloat16, torch.device("cuda", 1), choose, PlainLinear]
    assert through([plain, types]) == [plain, types]
    packed = PackedWeights("e2m1", "e8m0", 4, 32, 64, a, b, order=None)
    found = through(packed)
    assert type(found) is PackedWeights and found.words is a and found.scales is b
    assert found.bits == 4 and found.order is None, "frozen, with slots"
    stack = through(Fp8Stack(a, b, (1, 2), Inputs(128, scale=a)))
    assert type(stack) is Fp8Stack and stack.inputs.scale is a and stack.block == (1, 2)
    kernel = through(PlainLinear(a, None, 7))
    assert kernel._weight is a and kernel._row_block == 7, "with a __dict__"
    assert through(kernel.sums).__self__._weight is a, "a method"


def test_what_has_data_or_code_of_others_is_refused_by_name() -> None:
    for value, why in (
        (torch.ones(1), "torch.Tensor is not of this package"),
        (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear is not of"),
        ({1, 2}, "builtins.set is not of"),
        (len, "builtins.builtin_function_or_method is not of"),
        (msgspec.msgpack.encode, "is not of this package"),
        (msgspec.Struct, "msgspec.Struct is not of"),
        (lambda: 0, "is not of this package"),
    ):
        with pytest.raises(NotDescribed, match=why):
            tree_of([value], name)
    for tree, why in (
        (["function", "os", "system"], "os.system is not of this package"),
        (["object", "subprocess", "Popen", {}], "subprocess.Popen is not of"),
        (["dtype", "load"], "torch has no dtype load"),
        (["code", "1"], "'code' is no kind of object"),
    ):
        with pytest.raises(NotDescribed, match=why):
            object_of(tree, TENSORS.get)
