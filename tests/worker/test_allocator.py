"""The C library's allocator is told, or the reason is known."""

from __future__ import annotations

import platform

import pytest

from baton_worker.allocator import keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_glibc_accepts() -> None:
    assert keep_freed_memory()
