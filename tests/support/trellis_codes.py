"""EXL3 tensors with random trellises, and what they mean, computed one value at a time.

Any ring of bits is a valid trellis, so encoding needs no search: the weights of a test are what its
random bits stand for, at the size of the weights that they replace.
"""

from __future__ import annotations

import random
import struct
from functools import cache
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from baton_worker.kernels.cpu.trellis_weight import TrellisWeight
from baton_worker.quantization.collect import CollectedWeights
from baton_worker.quantization.exl3 import formats
from tests.support.quantized_checkpoints import Method, Rounded

_MULTIPLIERS = {"3inst": 89226354, "mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}


def exl3(bits: int, codebook: str = "mul1", *, left: str = "suh", right: str = "svh") -> Method:
    """Tiles of 16 x 16 values; `left` and `right` are how the scales of inputs and of outputs are
    stored."""
    book = _book(codebook)

    def method(weight: Tensor) -> Rounded:
        outputs, inputs = weight.shape
        chance = random.Random(f"{bits} {codebook} {inputs} {outputs}")
        trellis = np.zeros((inputs // 16, outputs // 16, 16 * bits), dtype=np.uint16)
        coded = np.zeros((inputs, outputs), dtype=np.float32)
        for i, j in np.ndindex(trellis.shape[:2]):
            ring = chance.getrandbits(256 * bits)
            trellis[i, j] = _words(ring, bits)
            coded[i * 16 : i * 16 + 16, j * 16 : j * 16 + 16] = _tile(ring, bits, book)
        deviation = float(weight.std())
        suh, stored = _scales(inputs, left, chance, deviation)
        svh, also = _scales(outputs, right, chance, 1.0 if left == "suh" else deviation)
        turned = _rotation(inputs) @ coded @ _rotation(outputs)
        meant = suh[:, None] * turned * svh
        parts = {"trellis": torch.from_numpy(trellis.view(np.int16)), left: stored, right: also}
        if codebook != "3inst":
            marker = torch.tensor(_MULTIPLIERS[codebook], dtype=torch.int64)
            parts[codebook] = marker.to(torch.int32)
        return parts, torch.from_numpy(meant.T.astype(np.float32, order="C"))

    return method


def weight_of(codebook: str | None, parts: dict[str, Tensor]) -> TrellisWeight:
    """What a checkpoint's tensors are read as; old ones name no codebook."""
    given = SimpleNamespace() if codebook is None else SimpleNamespace(codebook=codebook)
    reading = CollectedWeights(formats(given))
    found = [pair for name, part in parts.items() for pair in reading(f"a.{name}", part)]
    reading.end()
    [(name, weight)] = found
    assert name == "a.weight" and isinstance(weight, TrellisWeight)
    return weight


@cache
def _book(codebook: str) -> np.ndarray:
    """float16 [65536]: what each state of 16 bits stands for."""
    return np.array([_value(state, codebook) for state in range(1 << 16)], dtype=np.float16)


def _value(state: int, codebook: str) -> float:
    """Before it is rounded to half precision."""
    hashed = state * _MULTIPLIERS[codebook] & 0xFFFFFFFF
    if codebook == "mul1":
        scale, offset = struct.unpack("<2e", bytes.fromhex("ee1e31c9"))
        return float((1024 + sum(hashed.to_bytes(4, "little"))) * scale + offset)
    if codebook == "3inst":
        hashed = hashed + 64248484 & 0xFFFFFFFF
    return float(sum(struct.unpack("<2e", struct.pack("<I", (hashed & 0x8FFF8FFF) ^ 0x3B603B60))))


def _words(ring: int, bits: int) -> list[int]:
    """The first 32 bits of the ring are the first word of 32, low half first in memory."""
    text = f"{ring:0{256 * bits}b}"
    halves = [int(text[at : at + 16], 2) for at in range(0, len(text), 16)]
    return [halves[at ^ 1] for at in range(len(halves))]


def _tile(ring: int, bits: int, book: np.ndarray) -> np.ndarray:
    """[input, output] of a ring: a value's state ends with its own bits."""
    text = f"{ring:0{256 * bits}b}"
    around = text[-16:] + text
    tile = np.zeros((16, 16), dtype=np.float32)
    for place in range(256):
        end = 16 + (place + 1) * bits
        value = book[int(around[end - 16 : end], 2)]
        lane, step = divmod(place, 8)
        tile[lane % 4 * 2 + (0, 1, 8, 9)[step % 4], lane // 4 + (0, 8)[step // 4]] = value
    return tile


def _rotation(size: int) -> np.ndarray:
    signs = [[(-1) ** (row & column).bit_count() for column in range(128)] for row in range(128)]
    return np.kron(np.eye(size // 128), np.array(signs) / np.sqrt(128))


def _scales(count: int, name: str, chance: random.Random, size: float) -> tuple[np.ndarray, Tensor]:
    """Scales, and the tensor that holds them: numbers, or the bits of signs."""
    signs = [chance.choice((1.0, -1.0)) for _ in range(count)]
    if name in ("su", "sv"):
        bits = [sum((signs[at + i] < 0) << i for i in range(16)) for at in range(0, count, 16)]
        return np.array(signs), torch.from_numpy(np.array(bits, dtype=np.uint16).view(np.int16))
    numbers = np.array([sign * size * chance.uniform(0.5, 1.5) for sign in signs], np.float16)
    return numbers.astype(np.float32), torch.from_numpy(numbers)
