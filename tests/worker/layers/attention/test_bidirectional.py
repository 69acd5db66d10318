"""The attention layer of encoders."""

from __future__ import annotations

import torch

from baton_worker.layers.attention.bidirectional import Bidirectional
from baton_worker.layers.attention.whole_texts import by_length
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.spec import Attention


def test_every_token_sees_its_text_and_the_residual_is_added() -> None:
    torch.manual_seed(0)
    cpu = torch.device("cpu")
    layer = Bidirectional(Attention(2, 2, 8, 0.3, rope=None), 16, BuildContext(cpu, torch.float32))
    for parameter in layer.parameters():
        parameter.normal_()
    x, residual, none = torch.randn(5, 16), torch.randn(5, 16), torch.empty(0)

    def run(x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        step = ForwardContext(none, {}, {}, texts=by_length([2, 3], cpu))
        out: torch.Tensor = layer(x, step, none, residual)
        return out

    plain = run(x, None)
    assert torch.allclose(run(x, residual), plain + residual, atol=1e-5)
    x[4] += 1
    changed = (run(x, None) - plain).abs().amax(1) > 1e-6
    assert changed.tolist() == [False, False, True, True, True]
