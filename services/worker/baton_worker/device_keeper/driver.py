"""Memory of a GPU that other processes can open, by calls of CUDA's driver library.

Not by torch's own sharing of tensors: that counts users in files of /dev/shm, and a worker that is
killed stays counted for ever, so that its memory could never be freed.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

_HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1


class DeviceError(Exception):
    """The device, or its driver, cannot do this; one sentence."""


class DeviceDriver(Protocol):
    """Memory of one device. Raises `DeviceError`."""

    def allocate(self, size: int) -> int:
        """The address of zeroed memory."""
        ...

    def free(self, address: int) -> None:
        """Free allocated memory, which no other process has open."""
        ...

    def export(self, address: int) -> bytes:
        """A handle by which processes of this host open allocated memory."""
        ...

    def open(self, handle: bytes) -> int:
        """The address of another process's memory in this one."""
        ...

    def close(self, address: int) -> None:
        """Close opened memory."""
        ...


class _Handle(ctypes.Structure):
    """`CUipcMemHandle`, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_char * _HANDLE_BYTES),)


class CudaDriver:
    """See `DeviceDriver`. Uses the primary context of the GPU, which torch uses too.

    Any thread may call it. A context exists from the first call on: no process that forks may make
    one.
    """

    def __init__(self, gpu: int, library: Any = None) -> None:
        """
        Args:
            gpu: its number among those that CUDA_VISIBLE_DEVICES leaves visible.
            library: None means the system's.
        """
        self._gpu, self._library = gpu, library
        self._context: ctypes.c_void_p | None = None

    def allocate(self, size: int) -> int:
        """See `DeviceDriver`."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        # A byte in the place of each, and the host waits for it.
        zero, count = ctypes.c_ubyte(0), ctypes.c_size_t(size)
        self._call("cuMemsetD8_v2", address, zero, count)
        self._call("cuCtxSynchronize")
        return address.value

    def free(self, address: int) -> None:
        """See `DeviceDriver`."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def export(self, address: int) -> bytes:
        """See `DeviceDriver`."""
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        """See `DeviceDriver`."""
        if len(handle) != _HANDLE_BYTES:
            raise DeviceError(f"a CUDA IPC handle has {_HANDLE_BYTES} bytes and not {len(handle)}")
        address, native = ctypes.c_uint64(), _Handle.from_buffer_copy(handle)
        flags = ctypes.c_uint(_LAZY_PEER_ACCESS)
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), native, flags)
        return address.value

    def close(self, address: int) -> None:
        """See `DeviceDriver`. Waits for everything that is queued, which may use the memory."""
        self._call("cuCtxSynchronize")
        self._call("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a function in the context, which is a property of the thread."""
        if self._context is None:
            self._context = self._primary_context()
        self._checked("cuCtxSetCurrent", self._context)
        self._checked(name, *arguments)

    def _primary_context(self) -> ctypes.c_void_p:
        if self._library is None:
            try:
                self._library = ctypes.CDLL("libcuda.so.1")
            except OSError as error:
                raise DeviceError(f"CUDA's driver library cannot be loaded: {error}") from error
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._checked("cuInit", ctypes.c_uint(0))
        self._checked("cuDeviceGet", ctypes.byref(device), ctypes.c_int(self._gpu))
        self._checked("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        return context

    def _checked(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))
            message = (text.value or b"unknown error").decode()
            raise DeviceError(f"{name}: {message} ({code})")
