"""Memory of a device double that a keeper holds: for whom, and how long."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.process.lifecycle import Lifecycle
from baton_worker.device_keeper.keeper import DeviceKeeper, keep
from baton_worker.device_keeper.kept_memory import KeeperClient, checksum
from tests.fakes.host_memory import HostDriver, HostOpener

KEY, OTHER = b"k" * 32, b"o" * 32
USER = """
import sys
from pathlib import Path
from baton_worker.device_keeper.kept_memory import KeeperClient
from tests.fakes.host_memory import HostOpener
client = KeeperClient(Path(sys.argv[1]), 0, HostOpener(Path(sys.argv[2])))
kept = client.lease("pages worker", b"k" * 32, 4096, 7)
kept.memory[:8] = 5
print(kept.as_left, flush=True)
sys.stdin.read()
"""
"""Another process that uses memory."""


@pytest.fixture
def driver(tmp_path: Path) -> HostDriver:
    return HostDriver(tmp_path, capacity=3 << 12)


@pytest.fixture
def keeper(run_dir: Path, driver: HostDriver) -> Iterator[DeviceKeeper]:
    made = DeviceKeeper(run_dir, 0, driver)
    made.listen()
    made.start()
    yield made
    made.close()


@pytest.fixture
def client(keeper: DeviceKeeper, run_dir: Path, tmp_path: Path) -> KeeperClient:
    found = KeeperClient(run_dir, 0, HostOpener(tmp_path))
    assert found.exists
    found._watched = True  # The keeper is this process.
    return found


def test_memory_is_as_the_last_worker_left_it_and_freed_when_nobody_uses_it(
    client: KeeperClient, keeper: DeviceKeeper, driver: HostDriver
) -> None:
    first = client.lease("pages worker", KEY, 4096, 7)
    assert first is not None and not first.as_left and not first.memory.any()
    first.memory[100] = 3
    again = client.lease("pages worker", KEY, 4096, 7)
    assert again is not None and again.as_left and int(again.memory[100]) == 3
    assert again.generation == first.generation and first.there()
    found = client.find("pages worker")
    assert (found.size, found.num_pages, found.sealed) == (4096, 7, False)
    assert client.find("pages of another").generation == b""
    # Another use of it is other memory; the old is freed only once nobody has it open.
    other = client.lease("pages worker", OTHER, 4096, 7)
    assert other is not None and not other.as_left and not other.memory.any()
    assert not first.there() and len(driver.sizes) == 2
    del first, again
    gc.collect()
    keeper.sweep()
    assert len(driver.sizes) == 1
    other.drop()
    keeper.sweep()
    assert len(driver.sizes) == 1, "it is open here"
    del other
    gc.collect()
    keeper.sweep()
    assert driver.sizes == {}


def test_sealed_memory_is_taken_only_while_all_of_its_bytes_are_what_they_were(
    client: KeeperClient,
) -> None:
    first = client.lease("weights", KEY, 4096)
    assert first is not None and not first.whole
    first.memory[5] = 9
    first.seal()
    second = client.lease("weights", KEY, 4096)
    assert second is not None and second.whole and client.find("weights").sealed
    second.memory[4000] = 1
    damaged = client.lease("weights", KEY, 4096)
    assert damaged is not None and not damaged.whole
    assert checksum(damaged.memory[:4000]) == 9 << 40


def test_what_cannot_be_kept_is_private_with_a_sentence(
    client: KeeperClient,
    keeper: DeviceKeeper,
    run_dir: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    assert client.lease("weights", KEY, 1 << 20) is None
    assert caplog.messages[-1] == (
        "weights of this worker do not outlive it: cuMemAlloc_v2: out of memory (2)"
    )
    client._opener.refuses = True  # type: ignore[attr-defined]
    assert client.lease("pages worker", KEY, 64) is None
    assert "pages of this worker do not outlive it: cuIpcOpenMemHandle_v2" in caplog.messages[-1]
    assert not keeper.in_use()
    alone = KeeperClient(run_dir, 1, HostOpener(tmp_path))
    assert not alone.exists and alone.lease("weights", KEY, 64) is None
    assert "does not answer" in caplog.messages[-1]


def test_a_killed_worker_leaves_its_memory(
    keeper: DeviceKeeper, client: KeeperClient, driver: HostDriver, run_dir: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", USER, str(run_dir), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"False\n" and keeper.in_use()
        client.drop("pages of another")
        worker.kill()
    left = client.lease("pages worker", KEY, 4096, 7)
    assert left is not None and left.as_left and int(left.memory[:8].sum()) == 40
    left.drop()
    del left
    gc.collect()
    keeper.sweep()
    assert driver.sizes == {} and not keeper.in_use()


def test_one_that_is_told_to_end_waits_for_its_workers(
    run_dir: Path, driver: HostDriver, tmp_path: Path
) -> None:
    life, made = Lifecycle(1.0), DeviceKeeper(run_dir, 0, driver)
    running = threading.Thread(target=keep, args=(made, life))
    running.start()
    client = KeeperClient(run_dir, 0, HostOpener(tmp_path))
    client._watched = True
    while not client.exists:
        time.sleep(0.01)
    kept = client.lease("weights", KEY, 64)
    life.stop()
    running.join(0.5)
    assert running.is_alive()
    del kept
    gc.collect()
    running.join(60)
    assert not running.is_alive() and not client.exists
