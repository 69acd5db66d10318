"""The C library's allocator is told, or the reason is known."""

from __future__ import annotations

import platform

import pytest
import torch

from baton_worker.platform.malloc import keep_freed_memory, release_pages


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_glibc_accepts() -> None:
    assert keep_freed_memory()


@pytest.mark.skipif(platform.system() != "Linux", reason="only Linux drops pages at once")
def test_whole_pages_are_handed_back_and_no_other() -> None:
    values = torch.ones(1 << 20, dtype=torch.uint8)
    part = values[100_000:900_000]
    release_pages(part.data_ptr(), part.nbytes)
    assert (values[:100_000] == 1).all() and (values[900_000:] == 1).all()
    # The first and the last page are not whole: some of their bytes are of others.
    assert part[: 1 << 16].sum() < 1 << 16 and (part == 0).sum() > 800_000 - 2 * (1 << 16)
    release_pages(values.data_ptr(), 8)
    assert values[0] == 1
