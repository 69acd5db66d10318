"""The fused expert kernel against its twin, in Triton's interpreter or on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels import fp8
from baton_worker.kernels.fp8 import Fp8Stack, Inputs
from baton_worker.kernels.moe import triton as triton_experts
from baton_worker.kernels.moe.experts import Experts
from baton_worker.kernels.moe.loop import LoopExperts
from baton_worker.kernels.moe.triton import TritonExperts
from baton_worker.kernels.weight import QuantizedWeight
from tests.support.worker import packable_weights

GPU = torch.cuda.is_available()


@pytest.fixture(scope="module")
def fused(interpreted: None) -> ModuleType:
    """The kernel, interpreted where there is no GPU."""
    return import_module("baton_worker.kernels.triton.moe")


@pytest.fixture
def launched(interpreted: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that are launched from now on."""
    from baton_worker.kernels.triton.norm import _norm

    run, names = type(_norm).run, list[str]()

    def record(self: Any, *args: Any, **kwargs: Any) -> object:
        names.append(self.fn.__name__)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(type(_norm), "run", record)
    return names


def experts(num: int, hidden: int, size: int, *, bias: bool, weigh_input: bool) -> Experts:
    generator = torch.Generator().manual_seed(num)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to("cuda" if GPU else "cpu")

    return Experts(
        random(num, 2 * size, hidden),
        random(num, hidden, size),
        random(num, 2 * size) if bias else None,
        random(num, hidden) if bias else None,
        lambda inner: F.silu(inner[..., :size]) * inner[..., size:],
        weigh_input,
        "silu",
    )


@pytest.mark.row("F06.01", "F06.16", "F21.08")
@pytest.mark.parametrize(
    ("num", "slots", "num_tokens", "hidden", "size", "bias", "weigh_input"),
    [
        (8, 2, 1, 64, 64, False, False),
        (8, 2, 45, 70, 33, True, False),
        (3, 3, 40, 16, 130, False, True),
        (64, 4, 5, 32, 24, True, True),
        (64, 4, 3, 70, 33, True, True),
        (1, 1, 7, 8, 8, False, False),
    ],
)
def test_equals_the_loop(
    fused: ModuleType,
    num: int,
    slots: int,
    num_tokens: int,
    hidden: int,
    size: int,
    bias: bool,
    weigh_input: bool,
) -> None:
    layer = experts(num, hidden, size, bias=bias, weigh_input=weigh_input)
    generator = torch.Generator().manual_seed(1)
    chosen = torch.rand((num_tokens, num), generator=generator).argsort(-1)[:, :slots]
    chosen[0, 0], chosen[-1, -1] = -1, num
    weights = torch.rand((num_tokens, slots), generator=generator)
    x = torch.randn((num_tokens, hidden), generator=generator)
    x, chosen, weights = (t.to(layer.down.device) for t in (x, chosen, weights))
    expected = LoopExperts(layer)(x, chosen, weights)
    ours = TritonExperts(layer)(x, chosen, weights)
    torch.testing.assert_close(ours, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.row("F06.01", "F21.08")
def test_tiles_of_many_rows_give_the_same(fused: ModuleType, device: torch.device) -> None:
    layer = experts(2, 40, 24, bias=True, weigh_input=False)
    x = torch.randn(40, 40, device=device)
    chosen = torch.tensor([[0, 1], [1, -1]] * 20, device=device)
    weights = torch.rand(40, 2, device=device)
    few = TritonExperts(replace(layer, exact=True))
    many, aligned, blocks = TritonExperts(layer), fused.align, list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "align", lambda *given: (blocks.append(given[2]), aligned(*given))[1])
        found, wanted = many(x, chosen, weights), few(x, chosen, weights)
    assert blocks == [64, 16]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.row("F06.01", "F21.08")
def test_few_visits_take_three_launches_and_give_the_same(
    fused: ModuleType, device: torch.device, launched: list[str]
) -> None:
    layer = experts(16, 70, 24, bias=True, weigh_input=False)
    layer = replace(layer, gate=gated)
    x = torch.randn(2, 70, device=device)
    chosen = torch.tensor([[3, 15], [7, 3]], device=device)
    weights = torch.rand(2, 2, device=device)
    few = TritonExperts(layer)(x, chosen, weights)
    assert launched == ["_product", "_product", "_combine"]
    launched.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "_LONE", 1000)
        found = TritonExperts(layer)(x, chosen, weights)
    assert launched == ["_align", "_product", "_gated", "_product", "_combine"]
    assert torch.equal(few, found)
    launched.clear()
    TritonExperts(replace(layer, down_bias=None))(x[:1], chosen[:1], weights[:1])
    assert launched == ["_product", "_product", "_combine"]


def gated(inner: Tensor) -> Tensor:
    """The gate as a launch of its own."""
    return cast(Tensor, import_module("baton_worker.kernels.triton.gated").gated(inner, "silu"))


def packed(first: Sequence[QuantizedWeight], second: Sequence[QuantizedWeight]) -> Experts:
    """A layer of experts whose gate and up, two parts, and down stay packed."""
    num, size = len(first), first[0].shape[0]
    like = torch.empty(num, 0, 0, device="cuda" if GPU else "cpu")
    return Experts(
        *(like, like, None, None),
        lambda inner: F.silu(inner[..., :size]) * inner[..., size:],
        fused="silu",
        packed_gate_up=[(one, one) for one in first],
        packed_down=[(one,) for one in second],
    )


def floats(layer: Experts) -> Experts:
    """The same in float32."""
    gate_up, down = (
        torch.stack(
            [torch.cat([part.dequantise() for part in parts]) for parts in weights if parts]
        )
        for weights in (layer.packed_gate_up, layer.packed_down)
    )
    device = layer.down.device
    return replace(
        layer,
        gate_up=gate_up.to(device),
        down=down.to(device),
        packed_gate_up=(),
        packed_down=(),
    )


@pytest.mark.row("F06.01", "F06.16", "F21.08", "F03.02")
def test_weights_stay_packed(fused: ModuleType, device: torch.device) -> None:
    """Every format, also those whose inputs are rounded; the oracle has their floats. Experts that
    change places compute what they did."""
    num, hidden, size = 2, 64, 32
    first = [packable_weights.each(size, hidden) for _ in range(num)]
    second = [packable_weights.each(hidden, size) for _ in range(num)]
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, hidden, generator=generator).to(device)
    chosen = torch.rand(4, num, generator=generator).argsort(-1)[:, :2].to(device)
    chosen[0, 0], chosen[1, 1] = -1, num
    weights = torch.rand(4, 2, generator=generator).to(device)
    for name in first[0]:
        if name == "int4 in the order of activations":
            continue  # Of one order for all experts, which no tool writes.
        layer = packed([one[name] for one in first], [one[name] for one in second])
        ours = TritonExperts(layer)
        found = ours(x, chosen, weights)
        wide = floats(layer)
        assert ours.nbytes < wide.nbytes, name
        wanted = LoopExperts(wide)(x, chosen, weights)
        far = float((found - wanted).norm() / wanted.norm())
        assert far < (0.1 if name.startswith("fp8") else 1e-5), (name, far)
        # Visits of one token are not laid out.
        alone = ours(x[2:3], chosen[2:3], weights[2:3])
        near = 1e-5 * float(found.abs().max())
        torch.testing.assert_close(alone, found[2:3], rtol=1e-5, atol=near)
        store = ours.store
        assert store.refuses() is None and store.layout == TritonExperts(layer).store.layout
        kept = {part: tensor.clone() for part, tensor in store.expert(0).items()}
        store.put(0, store.expert(1))
        store.put(1, kept)
        here = (chosen >= 0) & (chosen < num)
        assert torch.equal(ours(x, torch.where(here, 1 - chosen, chosen), weights), found), name


def by_expert(layer: Experts, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """The twin of products of 8-bit floats, visit by visit."""
    out = torch.zeros_like(x)
    for token, slot in torch.ones_like(chosen).nonzero().tolist():
        if 0 <= (expert := int(chosen[token, slot])) < len(layer.packed_down):
            first, second = layer.packed_gate_up[expert], layer.packed_down[expert]
            assert first is not None and second is not None
            given: Any = x[token : token + 1]
            inner = layer.gate(torch.cat([fp8.product(given, part) for part in first], -1))  # type: ignore[arg-type]
            returned = fp8.product(inner, second[0])  # type: ignore[arg-type]
            out[token] += returned[0] * weights[token, slot]
    return out


# Rows of visits to no expert are never written: codes of what is in memory there are never read.
@pytest.mark.filterwarnings("ignore:overflow encountered in divide:RuntimeWarning")
@pytest.mark.row("F06.01", "F21.06", "F21.08")
def test_codes_of_8_bits_are_multiplied_as_they_are(
    fused: ModuleType, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales of tensors, rows and blocks, whole or not, in tiles of few rows and of many."""
    made = packable_weights.fp8
    blocks: dict[str, tuple[tuple[int, int], Inputs]] = {
        "tensor": ((64, 64), Inputs()),
        "row": ((1, 64), Inputs()),
        "static": ((64, 64), Inputs(scale=torch.tensor(0.02))),
        "block": ((32, 32), Inputs(32)),
        "block that is not whole": ((48, 32), Inputs(32)),
    }
    monkeypatch.setattr(triton_experts, "has_float8", lambda device: True)
    monkeypatch.setattr(fused, "_FULL", 8)
    for name, (block, inputs) in blocks.items():
        layer = packed(
            *([made(64, 64, block, inputs) for _ in range(2)] for _ in range(2)),
        )
        ours = TritonExperts(layer)
        assert isinstance(ours._experts.down, Fp8Stack), name
        assert ours.nbytes < 1.3 * 2 * 3 * 64 * 64
        for tokens in (3, 20):
            x = torch.randn(tokens, 64, device=device)
            chosen = torch.rand(tokens, 2, device=device).argsort(-1)
            chosen[0, 0] = -1
            weights = torch.rand(tokens, 2, device=device)
            # On a CPU, where the checkpoint's weights are.
            wanted = by_expert(layer, x.cpu(), chosen.cpu(), weights.cpu())
            far = (ours(x, chosen, weights).cpu() - wanted).norm() / wanted.norm()
            # A number between two codes may be rounded to the other one.
            # Tensor cores keep about 14 bits of sums, and more numbers lie between two codes.
            assert far < (1e-2 if GPU else 5e-3), (name, tokens, float(far))


@pytest.mark.row("F06.01")
def test_what_is_not_packed_alike_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    four = [packable_weights.gptq(4, 32, 64, 32) for _ in range(2)]
    layer = packed(four, [packable_weights.gptq(4, 64, 32, 32) for _ in range(2)])
    on_gpu = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float32)

    def refuses(**changes: Any) -> str | None:
        return TritonExperts.refuses(replace(layer, **{"down": on_gpu} | changes))

    assert refuses() is None
    some = [(four[0], four[0]), None]
    assert refuses(packed_gate_up=some) == "some of its experts are floats"
    several = [(four[0], four[0]), (four[1], packable_weights.mxfp4(32, 64))]
    assert "in several ways" in str(refuses(packed_gate_up=several))
    own = [packable_weights.fp8(64, 32, (1, 32), Inputs(scale=torch.tensor(s))) for s in (0.1, 0.2)]
    assert "in several ways" in str(refuses(packed_down=[(one,) for one in own]))
    shared = packable_weights.fp8(64, 32, (1, 32), Inputs(per_tensor=True))
    assert "share a scale" in str(refuses(packed_down=[(shared,)] * 2))


def test_a_token_gets_the_same_bits_beside_any_others(fused: ModuleType) -> None:
    made = experts(4, 32, 24, bias=False, weigh_input=False)
    layer = TritonExperts(replace(made, gate=gated, exact=True))
    # Alone, the gate is part of the product.
    device = torch.device("cuda" if GPU else "cpu")
    x = torch.randn(20, 32, device=device)
    chosen = torch.rand(20, 4, device=x.device).argsort(-1)[:, :2]
    weights = torch.rand(20, 2, device=x.device)
    together = layer(x, chosen, weights)
    for row in range(20):
        one = slice(row, row + 1)
        assert torch.equal(layer(x[one], chosen[one], weights[one]), together[one])
