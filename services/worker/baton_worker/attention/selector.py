"""Chooses the attention backend of each kind of layer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from baton.errors import ModelError
from baton.logs import logger
from baton_worker.attention import BACKENDS, AttentionSpec, Backend
from baton_worker.attention.aliases import NAMES
from baton_worker.attention.call_stats import CallStats, CountedBackend

_PLAIN = ("grouped", "reference", "flex")
"""Backends in plain torch."""
_EXACT = ("triton",)
"""Backends that take `exact`: a token has the same bits decoded and in a prompt, beside any
others."""

Fastest: TypeAlias = Callable[[AttentionSpec, Mapping[str, Backend]], str]
"""The name of one of several backends for a kind of layer."""

log = logger(__name__)


class AttentionSelector:
    """Selects the first backend that accepts a kind of layer; layers of one kind share it.

    Args:
        backend: a row of `BACKENDS`, an alias of one, or "auto" to try all.
        counts: counters of backend calls, if wanted.
        exact: on a GPU, only backends are chosen with which the numbers of a token depend on its
            own sequence alone.

    Raises:
        SettingsError: no such backend; for other servers' names, what to use instead.
    """

    def __init__(
        self, backend: str = "auto", counts: CallStats | None = None, *, exact: bool = False
    ) -> None:
        self._candidates = NAMES.candidates(backend, BACKENDS)
        self._selected: dict[AttentionSpec, tuple[str, Backend]] = {}
        self.counts, self._exact = counts, exact
        self.fastest: Fastest | None = None
        """Chooses among several that serve layers on a GPU; None: the first. Set before the first
        `select`."""

    def select(self, call: AttentionSpec) -> Backend:
        """The backend of such layers; refusals of the others are logged.

        Raises:
            ModelError: every backend refuses; the message lists the reasons.
        """
        return self._row(call)[1]

    def name(self, call: AttentionSpec) -> str:
        """Name of the row of `BACKENDS` that `select` chooses. Raises as it does."""
        return self._row(call)[0]

    def named(self, name: str, call: AttentionSpec) -> Backend | None:
        """The backend of this name; None where it is not to be tried, or refuses such layers."""
        if name not in self._candidates:
            return None
        backend, reason = self._asked(name, call)
        return backend if reason is None else None

    def _row(self, call: AttentionSpec) -> tuple[str, Backend]:
        if call not in self._selected:
            self._selected[call] = self._first(call)
        return self._selected[call]

    def _first(self, call: AttentionSpec) -> tuple[str, Backend]:
        reasons, usable = list[str](), dict[str, Backend]()
        several = self.fastest is not None and call.device.type == "cuda"
        for name in self._candidates:
            if usable and (not several or name in _PLAIN):
                break
            backend, reason = self._asked(name, call)
            if reason is None:
                usable[name] = backend
            else:
                reasons.append(f"{name} refused: {reason}")
        if not usable:
            raise ModelError(f"No attention backend serves {call}: {'; '.join(reasons)}.")
        name = next(iter(usable)) if self.fastest is None else self.fastest(call, usable)
        _report(name, call, reasons)
        return name, self._counted(usable[name], plain=name in _PLAIN)

    def _asked(self, name: str, call: AttentionSpec) -> tuple[Backend, str | None]:
        """A backend, and why it does not serve such layers."""
        backend, reason = self._made(name, call)
        return backend, reason or _unread(backend, call) or backend.refuses(call)

    def _made(self, name: str, call: AttentionSpec) -> tuple[Backend, str | None]:
        """A backend, and why it is not exact where it has to be."""
        kind = BACKENDS.load(name)
        if not self._exact or call.device.type != "cuda":
            return kind(), None
        if name not in _EXACT:
            return kind(), "--exact: its sums depend on what is beside a token"
        return kind(exact=True), None

    def _counted(self, backend: Backend, *, plain: bool) -> Backend:
        return backend if self.counts is None else CountedBackend(backend, plain, self.counts)


def _report(name: str, call: AttentionSpec, reasons: list[str]) -> None:
    level = logging.DEBUG if call.device.type == "meta" else logging.INFO
    log.log(level, "attention: %s (%s)%s", name, call, "".join(f"; {r}" for r in reasons))


def _unread(backend: Backend, call: AttentionSpec) -> str | None:
    if call.layout in backend.layouts:
        return None
    return f"it reads {' and '.join(sorted(backend.layouts))} pages, not {call.layout}"
