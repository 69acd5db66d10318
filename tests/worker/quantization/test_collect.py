"""Parts of a weight come in any order and become one."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.fp8 import Fp8Weight
from baton_worker.kernels.weight import ExpertStack
from baton_worker.quantization import fp8
from baton_worker.quantization.collect import CollectedWeights, Format, Parts
from tests.support import quantized_checkpoints

FORM = fp8.stored(True, fp8.Inputs(), None)
STORED = quantized_checkpoints.fp8(static="input_scale")(torch.randn(8, 16))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_parts_wait_for_each_other(order: tuple[int, ...]) -> None:
    parts, meant = STORED
    named = [(f"x.{part}", tensor) for part, tensor in parts.items()]
    gathered = CollectedWeights(lambda module: FORM)
    found = [pair for at in order for pair in gathered(*named[at])]
    gathered.end()
    [(name, weight)] = found
    assert name == "x.weight" and isinstance(weight, Fp8Weight)
    assert torch.equal(weight.dequantise(), meant)


def test_what_is_not_quantised_passes() -> None:
    gathered, norm = CollectedWeights(lambda module: FORM), torch.ones(4)
    for name, tensor in (("norm.weight", norm), ("x.bias", norm), ("y.weight", norm.bfloat16())):
        [(same, given)] = gathered(name, tensor)
        assert same == name and given is tensor
    nothing = CollectedWeights(lambda module: None)
    assert next(nothing("x.weight", STORED[0]["weight"]))[1] is STORED[0]["weight"]


def test_what_says_nothing_is_left_out() -> None:
    gathered = CollectedWeights(lambda module: fp8.stored(False, fp8.Inputs(), None))
    assert not list(gathered("x.input_scale", torch.ones(1)))


def test_experts_in_one_tensor_have_scales_of_its_name() -> None:
    codes = torch.randn(2, 8, 16).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 2, 4)
    gathered = CollectedWeights(lambda module: fp8.stored(False, fp8.Inputs(4), [4, 4]))
    assert not list(gathered("experts.gate_up_proj_scale_inv", scales))
    [(name, weight)] = gathered("experts.gate_up_proj", codes)
    assert name == "experts.gate_up_proj" and isinstance(weight, ExpertStack)
    assert isinstance(weight[1], Fp8Weight) and weight.shape == codes.shape
    expected = codes.float() * scales.repeat_interleave(4, 1).repeat_interleave(4, 2)
    assert torch.equal(weight.dequantise(), expected)


def test_a_lacking_part_is_named() -> None:
    gathered = CollectedWeights(lambda module: FORM)
    assert not list(gathered("x.weight", STORED[0]["weight"]))
    with pytest.raises(ModelError, match=r"x\.weight .* lacks .* input_scale, weight_scale"):
        gathered.end()


def test_parts_that_do_not_fit_are_named_with_their_shapes() -> None:
    def read(parts: Parts) -> Fp8Weight:
        bad: Tensor = parts["weight"] @ parts["weight"]
        raise AssertionError(bad)

    gathered = CollectedWeights(lambda module: Format(frozenset({"weight"}), read))
    with pytest.raises(ModelError, match=r"parts of x\.weight .*: weight \[2, 3\]"):
        list(gathered("x.weight", torch.zeros(2, 3, dtype=torch.int8)))
