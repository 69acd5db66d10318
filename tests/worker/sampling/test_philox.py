"""Philox against the published test vectors; uniforms are pure, open and even."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton_worker.sampling.philox import bits, philox, uniform

# kat_vectors of Random123 (philox4x32 10): counter, key, output.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_published_vectors(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    c0, c1, c2, c3 = (np.array([word], np.int64) for word in counter)
    k0, k1 = (np.array([word], np.int64) for word in key)
    words = philox((c0, c1, c2, c3), (k0, k1))
    assert tuple(int(word[0]) for word in words) == expected


def test_numpy_and_torch_agree() -> None:
    random = np.random.default_rng(0)
    low, high = random.integers(0, 2**32, (2, 1000))
    index = random.integers(0, 2**40, 1000)
    ours = bits(low, high, index)
    theirs = bits(*(torch.from_numpy(a) for a in (low, high, index)))
    assert np.array_equal(ours, theirs.numpy())
    assert np.array_equal(uniform(low, high, index), (theirs.double() * 2.0**-53).numpy())


def test_depends_on_seed_and_index_alone() -> None:
    low, high, index = np.arange(6), np.array([0, 0, 0, 1, 1, 1]), np.array([0, 5, 9, 0, 5, 9])
    together = uniform(low, high, index)
    assert len(set(together.tolist())) == 6
    for row in range(6):
        one = slice(row, row + 1)
        assert uniform(low[one], high[one], index[one])[0] == together[row]


def test_open_interval() -> None:
    index = np.arange(100_000)
    numbers = bits(index * 0, index * 0, index)
    assert (numbers % 2 == 1).all() and (numbers > 0).all() and (numbers < 2**53).all()
    assert numbers.max() > 2**53 - 2**40 and numbers.min() < 2**40


def test_even() -> None:
    """Chi-square over 64 bins: 63 degrees of freedom, 0.999 quantile 103.4."""
    index = np.arange(64_000)
    for seed in (0, 1, 2**31):
        values = uniform(np.full_like(index, seed), np.zeros_like(index), index)
        counts = np.bincount((values * 64).astype(int), minlength=64)
        assert ((counts - 1000) ** 2 / 1000).sum() < 103.4
