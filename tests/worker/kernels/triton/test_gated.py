"""Gates of feed-forward layers against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from baton_worker import spec
from baton_worker.layers import linear
from baton_worker.layers.moe.moe import between

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.row("F21.01")
def test_equals_the_twin(device: torch.device) -> None:
    from baton_worker.kernels.triton.gated import gated

    generator = torch.Generator().manual_seed(0)
    for dtype, near in TOLERANCES.items():
        for size in (1, 48, 1100):
            wide = (torch.randn(3, 2, 2 * size + 3, generator=generator) * 4).to(device, dtype)
            wide[0, 0, 0] = -100.0
            for both in (
                wide[..., : 2 * size].contiguous(),
                wide[:, 0, : 2 * size],
                wide[:0, 0, :2],
            ):
                gate, up = both.float().chunk(2, -1)
                for name, twin in (
                    ("silu", F.silu(gate)),
                    ("gelu_tanh", F.gelu(gate, approximate="tanh")),
                ):
                    found = gated(both, name)
                    assert found.dtype is dtype and found.is_contiguous()
                    torch.testing.assert_close(found.float(), twin * up, rtol=near, atol=near)


def test_layers_and_experts_on_a_gpu_use_it(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the gate has a name, whatever the device is called."""
    from baton_worker.kernels.triton import gated

    both, seen, plain = torch.randn(4, 20).to(device), list[str](), gated.gated

    def watched(both: torch.Tensor, gate: str) -> torch.Tensor:
        seen.append(gate)
        return plain(both, gate)

    def twin(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * up

    monkeypatch.setattr(gated, "gated", watched)
    monkeypatch.setattr(linear, "runs", lambda device: True)
    wanted = twin(*both.chunk(2, -1))
    apply = between(spec.Glu(10, "silu"))
    for found in (linear.halves(both, twin, "silu"), apply(both), linear.halves(both, twin)):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert seen == ["silu", "silu"]
