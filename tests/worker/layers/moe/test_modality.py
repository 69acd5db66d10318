"""Experts of texts and of images."""

from __future__ import annotations

from dataclasses import replace

import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.moe.modality import ModalityMoe

TEXT = spec.Moe(spec.Router(3, 2), spec.Glu(6), shared=spec.Glu(5))
VISION = spec.Moe(spec.Router(4, 2), spec.Glu(7), first_number=3)


def test_each_token_has_the_experts_of_what_it_stands_for() -> None:
    """Bit for bit, whatever stands beside it; all share what texts share."""
    context = BuildContext(
        torch.device("cpu"), torch.float32, lambda r: f"{r}.{{expert}}" if "expert_" in r else r
    )
    both, names = ModalityMoe(spec.ModalityMoe(TEXT, VISION), 4, context), set[str]()
    for part in both.modules():
        if isinstance(part, Layer):
            for name, rows in part.weight_targets():
                rows.copy_(torch.randn(rows.shape))
                names.add(name)
            part.process_weights_after_loading()
    assert {"router.weight", "expert_up.2.weight"} < names
    assert {"vision_router.weight", "vision_expert_up.3.weight", "shared_up.weight"} < names
    assert not {"vision_expert_up.0.weight", "vision_shared_up.weight"} & names
    x, seen = torch.randn(5, 4), torch.tensor([False, True, True, False, True])
    with torch.inference_mode():
        out, texts = both(x, seen, x), both(x, None, x)
        assert torch.equal(texts, both.text(x, x))
        shared = both.text.shared
        assert shared is not None
        images = both.vision(x, shared(x, x))
        torch.testing.assert_close(out, torch.where(seen[:, None], images, texts))
        alone = [both(x[row : row + 1], seen[row : row + 1], x[row : row + 1]) for row in range(5)]
        assert torch.equal(torch.cat(alone), out)


def test_its_experts_are_found_by_the_loader() -> None:
    layers = ((None, spec.ModalityMoe(TEXT, VISION)),)
    decoder = spec.Decoder(4, 9, layers, spec.Norm(1e-6), spec.Head(), style="by_modality")
    ((_, ffn),) = decoder.with_router("balanced").layers
    assert isinstance(ffn, spec.ModalityMoe)
    assert ffn.text == replace(TEXT, router=replace(TEXT.router, kind="balanced"))
    assert ffn.vision.router.kind == "balanced"
