"""Pixels in shared memory: bounded, sealed, gone with their owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from baton.errors import Unavailable
from baton.process.pixel_store import PixelsGone, PixelStore, take


def test_pixels_are_taken_by_their_token_until_they_are_dropped(run_dir: Path) -> None:
    """What is mapped stays; the bound counts what is held."""
    store = PixelStore(run_dir, max_bytes=10)
    store.start()
    try:
        token = store.reserve(8)
        with pytest.raises(PixelsGone, match="let them go"):
            take(store.address, token, 8)
        store.put(token, b"01234567")
        mapped = take(store.address, token, 8)
        with pytest.raises(Unavailable) as full:
            store.reserve(3)
        assert full.value.retry_after == 1
        for wrong in (bytes(16), token[:-1]):
            with pytest.raises(PixelsGone):
                take(store.address, wrong, 8)
        with pytest.raises(OSError, match="9 sealed bytes"):
            take(store.address, token, 9)
        with pytest.raises(TypeError):
            mapped[0] = 1
        store.drop(token)
        store.drop(token)
        with pytest.raises(PixelsGone):
            take(store.address, token, 8)
        assert mapped[:] == b"01234567" and (len(store), store.num_bytes) == (0, 0)
        late = store.reserve(4)
        store.drop(late)
        store.put(late, b"abcd")
        assert len(store) == 0, "dropped while it was copied"
        mapped.close()
    finally:
        store.close()
    with pytest.raises(PixelsGone, match="owner is gone"):
        take(store.address, token, 8)


def test_nothing_stays_behind_a_killed_owner(run_dir: Path) -> None:
    program = f"""
        import sys, time
        from pathlib import Path
        from baton.process.pixel_store import PixelStore
        store = PixelStore(Path({str(run_dir)!r}), 100)
        store.start()
        token = store.reserve(4)
        store.put(token, b"abcd")
        print(store.address, token.hex(), flush=True)
        time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        address, token = owner.stdout.readline().split()
        mapped = take(address, bytes.fromhex(token), 4)
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        assert mapped[:] == b"abcd"
        with pytest.raises(PixelsGone, match="owner is gone"):
            take(address, bytes.fromhex(token), 4)
        mapped.close()
