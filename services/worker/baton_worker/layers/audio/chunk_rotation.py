"""Rotation of states by their time in a sound."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from baton_worker import spec


def rotated(x: Tensor, settings: spec.ChunkRotation, chunk: int, chunk_states: int) -> Tensor:
    """See `spec.ChunkRotation`.

    Args:
        x: [T, C], the states of one chunk.
        chunk: its number in the sound.
        chunk_states: states of a whole chunk.
    """
    angles = _angles(settings, chunk, chunk_states, len(x)).to(x.device)
    cos, sin = angles.cos().double(), angles.sin().double()
    width = 2 * angles.shape[1]
    pairs = x[:, :width].double().view(len(x), -1, 2)
    left, right = pairs.unbind(-1)
    turned = torch.stack((left * cos - right * sin, right * cos + left * sin), dim=-1)
    return torch.cat((turned.flatten(1).to(x.dtype), x[:, width:]), dim=1)


def _angles(settings: spec.ChunkRotation, chunk: int, chunk_states: int, count: int) -> Tensor:
    """float32 [count, 2 * pairs]: of the chunk's number, then of the place in it."""
    width, most = 2 * settings.pairs, settings.most
    frequencies = 1.0 / settings.base ** (torch.arange(0, width, 2, dtype=torch.float) / width)
    places = torch.arange(count, dtype=torch.float)
    numbers = (chunk / most * frequencies).expand(count, -1)
    within = (places / most * (2 * math.pi))[:, None] * frequencies
    seconds = chunk * chunk_states * settings.seconds + places * settings.seconds
    return torch.cat((numbers, within), dim=1) * (-seconds * 2 * math.pi)[:, None]
