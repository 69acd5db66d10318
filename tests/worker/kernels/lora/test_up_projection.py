"""Products of absorbed up-projections, against the up-projection that they mean."""

from __future__ import annotations

import numpy as np
import torch

from baton_worker.kernels.lora import LoraPair, TokenAdapters
from baton_worker.kernels.lora.up_projection import LoraUpProjection

HEADS, NOPE, VALUE, LATENT, RANK = 3, 5, 4, 8, 2


def test_both_sides_are_those_of_the_sum_and_no_bit_depends_on_others() -> None:
    adapters = TokenAdapters(2, 64, torch.device("cpu"))
    up = LoraUpProjection(adapters, HEADS, NOPE)
    pair = LoraPair(torch.randn(RANK, LATENT), torch.randn(RANK, HEADS * (NOPE + VALUE)), 0.5)
    up.put(1, [pair])
    adapters.eager.add(1)
    adapters.write(np.array([1, -1, 1, 0, 1]))
    delta = (0.5 * pair.b.T @ pair.a).view(HEADS, NOPE + VALUE, LATENT)
    query, seen = torch.randn(5, HEADS, NOPE), torch.randn(5, HEADS, LATENT)
    into = up.into_latents(query, torch.zeros(5, HEADS, LATENT))
    out = up.out_of_latents(seen, torch.zeros(5, HEADS, VALUE))
    own = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0])[:, None, None]
    torch.testing.assert_close(into, own * torch.einsum("thn,hnl->thl", query, delta[:, :NOPE]))
    torch.testing.assert_close(out, own * torch.einsum("thl,hvl->thv", seen, delta[:, NOPE:]))
    adapters.write(np.array([1]))
    alone = up.into_latents(query[2:3], torch.zeros(1, HEADS, LATENT))
    assert torch.equal(alone[0], into[2])
    up.put(1, [None])
    assert not up.into_latents(query, torch.zeros(5, HEADS, LATENT)).any()
