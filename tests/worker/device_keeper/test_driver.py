"""Calls of CUDA's driver library, to a library that remembers them."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from baton_worker.device_keeper.driver import CudaDriver, DeviceError


class Library:
    """Stands for libcuda: notes every call, and fails those that it is told to."""

    def __init__(self) -> None:
        self.calls, self.fails = list[str](), dict[str, int]()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == "cuGetErrorString":
                arguments[1]._obj.value = b"out of memory"
            elif name in ("cuMemAlloc_v2", "cuIpcOpenMemHandle_v2"):
                arguments[0]._obj.value = 4096
            elif name == "cuIpcGetMemHandle":
                assert arguments[1].value == 4096
                ctypes.memset(arguments[0], 7, 64)
            elif name == "cuMemsetD8_v2":
                assert [a.value for a in arguments] == [4096, 0, 100]
            return self.fails.get(name, 0)

        return call


def test_calls_are_made_in_the_context_of_the_gpu_and_failures_are_sentences() -> None:
    library = Library()
    driver = CudaDriver(1, library)
    assert library.calls == [], "no context before it is needed"
    address = driver.allocate(100)
    assert address == 4096 and library.calls == [
        *("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"),
        *("cuCtxSetCurrent", "cuMemAlloc_v2", "cuCtxSetCurrent", "cuMemsetD8_v2"),
        *("cuCtxSetCurrent", "cuCtxSynchronize"),
    ]
    handle = driver.export(address)
    assert handle == bytes([7]) * 64 and driver.open(handle) == 4096
    driver.close(address)
    driver.free(address)
    assert library.calls[-6:] == [
        *("cuCtxSetCurrent", "cuCtxSynchronize", "cuCtxSetCurrent", "cuIpcCloseMemHandle"),
        *("cuCtxSetCurrent", "cuMemFree_v2"),
    ]
    with pytest.raises(DeviceError, match="has 64 bytes and not 3"):
        driver.open(b"abc")
    library.fails["cuMemAlloc_v2"] = 2
    with pytest.raises(DeviceError, match=r"^cuMemAlloc_v2: out of memory \(2\)$"):
        driver.allocate(100)


def test_a_machine_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(DeviceError, match="driver library cannot be loaded: libcuda"):
        CudaDriver(0).allocate(1)
