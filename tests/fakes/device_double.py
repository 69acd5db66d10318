"""A device that is not there: tensors that live on it, are computed on the CPU, and count what the
host waits for."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_NAME = "twin"


class _NoDevices:
    """What torch asks of every backend, of one that nobody finds unless told of it: to the rest of
    the process there is no such device."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return False

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """It has no generators."""


_setup_privateuseone_for_python_backend(_NAME, backend_module=_NoDevices())
DOUBLE = torch.device(_NAME, 0)
"""The device."""
_WAITS = frozenset(
    f"aten::{name}"
    for name in ("item", "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select")
)
"""Operators whose answer, or the shape of it, the host has to wait for."""
_COPIES = frozenset(f"aten::{name}" for name in ("to", "_to_copy", "copy_"))


class DeviceTensor(Tensor):
    """A tensor on the double; `on_host` has its numbers."""

    on_host: Tensor

    @staticmethod
    def __new__(cls, on_host: Tensor, double: Double) -> DeviceTensor:
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            on_host.size(),
            strides=on_host.stride(),
            storage_offset=on_host.storage_offset(),
            dtype=on_host.dtype,
            device=DOUBLE,
        )
        return made

    def __init__(self, on_host: Tensor, double: Double) -> None:
        self.on_host, self._double = on_host, double
        double.hold(self)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Outside of the double's mode too, as in threads."""
        mode = next(a._double for a in _flat((args, kwargs)) if isinstance(a, DeviceTensor))
        return mode.run(func, args, kwargs or {})


class Double(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Everything torch does within runs on the double where its tensors are there.

    Copies are eager but for two things, so that what would race on a GPU fails: the host sees a
    download only once it has waited for it, and pinned memory must still have the contents that
    were queued when the next download behind them is waited for.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = Counter[str]()
        """Uploads, downloads, waits: those that do not block, and by operator those that do."""
        self.launched = 0
        """Downloads so far: each ends what was launched."""
        self.lateness = list[int]()
        """Of each wait: how many steps had been launched behind what it waited for."""
        self._sent: list[tuple[Tensor, Tensor]] = []
        self._allowed = False
        self._on_side, self.on_steps = False, 0
        """Operators that were not queued on the side stream."""
        self.capacity = 1 << 30
        """Bytes of its memory."""
        self._holders, self._held, self._peak = Counter[int](), 0, 0

    @property
    def blocking(self) -> dict[str, int]:
        """How often the host waited for everything that was queued, by operator."""
        return {name: n for name, n in self.counts.items() if name.startswith("aten::") and n}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """See `TorchDispatchMode`."""
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator, on whichever device its tensors are."""
        flat = _flat((args, kwargs))
        there = any(isinstance(a, DeviceTensor) for a in flat)
        target = any(isinstance(a, torch.device) and a.type == _NAME for a in flat)
        home = any(isinstance(a, torch.device) and a.type == "cpu" for a in flat)
        name = func._schema.name
        self.on_steps += there and not (self._on_side or self._allowed or func.is_view)
        self._count(name, args, flat, there, target, home)
        out = func(*tree_map(_plain, args), **tree_map(_plain, kwargs))
        given = func._schema.arguments
        if given and (alias := given[0].alias_info) is not None and alias.is_write:
            return args[0]
        if (home and name in _COPIES) or not (there or target):
            return out
        return tree_map(lambda x: DeviceTensor(x, self) if isinstance(x, Tensor) else x, out)

    def _count(
        self, name: str, args: Any, flat: list[Any], there: bool, target: bool, home: bool
    ) -> None:
        if self._allowed:
            return
        if there and name in _WAITS:
            self.counts[name] += 1
            self.ended()
        mask = any(isinstance(a, DeviceTensor) and a.dtype is torch.bool for a in flat)
        if name == "aten::index" and mask:
            self.counts["aten::index (mask)"] += 1
        if name == "aten::copy_":
            crosses = len({isinstance(a, DeviceTensor) for a in flat if isinstance(a, Tensor)}) > 1
        else:
            crosses = name in _COPIES and ((target and not there) or (home and there))
        self.counts[name] += crosses
        if crosses and home and there:
            self.ended()

    def ended(self, but: int = 0) -> None:
        """The host knows that all uploads have ended but for so many that were queued last."""
        unchanged(self._sent)
        self._sent = self._sent[len(self._sent) - but :] if but else []

    def clear(self) -> None:
        """Count from 0."""
        self.counts.clear()
        self.lateness.clear()
        self.on_steps = 0

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Copies within are those of the link."""
        self._allowed = True
        try:
            yield
        finally:
            self._allowed = False

    # What follows is `DeviceMemory`: memory of what operators return, not of what they need inside.

    def hold(self, tensor: DeviceTensor) -> None:
        """Count the memory of a tensor as long as any tensor has it."""
        storage = tensor.on_host.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if not self._holders[address]:
            self._held += size
            self._peak = max(self._peak, self._held)
        self._holders[address] += 1
        weakref.finalize(tensor, self._drop, address, size).atexit = False

    def _drop(self, address: int, size: int) -> None:
        self._holders[address] -= 1
        if not self._holders[address]:
            self._held -= size

    def free(self) -> int:
        """See `DeviceMemory`."""
        return self.capacity - self._held

    def held(self) -> int:
        """See `DeviceMemory`."""
        return self._held

    def peak(self) -> int:
        """See `DeviceMemory`."""
        return self._peak

    def reset_peak(self) -> None:
        """See `DeviceMemory`."""
        self._peak = self._held

    # What follows is `SideStream`: work is done at once, and what is queued there is counted.

    @contextmanager
    def queue(self) -> Iterator[None]:
        """See `SideStream`."""
        self._on_side = True
        try:
            yield
        finally:
            self._on_side = False

    def fence(self) -> DoubleFence:
        """See `SideStream`."""
        self.counts["fence"] += 1
        return DoubleFence(self)

    def settle(self) -> None:
        """See `SideStream`."""
        self.counts["settle"] += 1
        self.ended()

    # What follows is `DeviceLink`.

    def pinned(self, size: int) -> Tensor:
        """See `DeviceLink`."""
        return torch.zeros(size, dtype=torch.uint8)

    def upload(self, source: Tensor, target: Tensor) -> None:
        """See `DeviceLink`."""
        self.counts["upload"] += 1
        with self.uncounted():
            target.copy_(source)
        self._sent.append((source, source.clone()))

    def download(self, source: Tensor) -> DoubleDownload:
        """See `DeviceLink`."""
        self.counts["download"] += 1
        self.launched += 1
        assert isinstance(source, DeviceTensor)
        sent, self._sent = self._sent, []
        return DoubleDownload(self, source.on_host.clone(), self.launched, sent)


class DoubleFence:
    """See `Fence`."""

    def __init__(self, double: Double) -> None:
        self._double = double

    def wait(self) -> None:
        """See `Fence`."""
        assert self._double._on_side, "the stream of steps waits for itself"
        self._double.counts["behind a fence"] += 1


class DoubleDownload:
    """See `Download`."""

    def __init__(
        self, double: Double, value: Tensor, number: int, sent: list[tuple[Tensor, Tensor]]
    ) -> None:
        self._double, self._value, self._number, self._sent = double, value, number, sent

    @property
    def ready(self) -> bool:
        """See `Download`."""
        return True

    def wait(self) -> Tensor:
        """See `Download`."""
        self._double.counts["wait"] += 1
        self._double.lateness.append(self._double.launched - self._number)
        unchanged(self._sent)
        return self._value


def unchanged(sent: list[tuple[Tensor, Tensor]]) -> None:
    """Pinned memory is as it was when its copy was queued."""
    for memory, queued in sent:
        assert torch.equal(memory, queued), "pinned memory was written while it was copied"


@contextmanager
def device_double() -> Iterator[Double]:
    """A double, on which Triton kernels run too, interpreted: within `interpreter`."""
    from triton.runtime import interpreter

    from baton_worker.kernels import triton as kernels

    plain = interpreter.GridExecutor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return plain(self, *tree_map(_plain, args), **tree_map(_plain, kwargs))

    double = Double()
    with pytest.MonkeyPatch.context() as patch, double:
        patch.setattr(interpreter.GridExecutor, "__call__", call)
        patch.setattr(kernels, "refuses", lambda device: None)
        yield double


def _plain(value: Any) -> Any:
    if isinstance(value, DeviceTensor):
        return value.on_host
    if isinstance(value, torch.device) and value.type == _NAME:
        return torch.device("cpu")
    return value


def _flat(values: Any) -> list[Any]:
    found = list[Any]()
    tree_map(found.append, values)
    return found
