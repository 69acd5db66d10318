"""Mixtures of their own for the tokens of media."""

from __future__ import annotations

import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.moe.modality import ModalityMoe


def test_each_token_takes_the_experts_of_its_kind() -> None:
    """Among texts alone, among both, and among media alone."""
    text = spec.Moe(spec.Router(3, 2), spec.Glu(6))
    media = spec.Moe(spec.Router(4, 1), spec.Glu(5))
    site = BuildContext(
        torch.device("cpu"), torch.float32, lambda r: f"{r}.{{expert}}" if "expert_" in r else r
    )
    moe = ModalityMoe(spec.ModalityMoe(text, media, spec.Glu(7), (8, 9)), 4, site)
    for part in moe.modules():
        if isinstance(part, Layer):
            for _, rows in part.weight_targets():
                rows.copy_(torch.randn(rows.shape))
            part.process_weights_after_loading()
    assert moe.shared is not None and moe.capture_blocker
    with torch.inference_mode():
        for ids in ([1, 2, 3], [1, 8, 2, 9, 9], [9, 8]):
            x, residual = torch.randn(len(ids), 4), torch.randn(len(ids), 4)
            ours = moe(x, torch.tensor(ids), residual)
            for row, token in enumerate(ids):
                own, after = x[row : row + 1], residual[row : row + 1]
                experts = moe.media if token in (8, 9) else moe.text
                expected = after + experts(own, None) + moe.shared(own, None)
                torch.testing.assert_close(ours[row : row + 1], expected)
