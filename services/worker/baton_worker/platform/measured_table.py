"""Times of one card that are measured when it is met for the first time, and kept in a file."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias

from baton.logs import logger

Times: TypeAlias = dict[str, dict[str, float]]
"""Seconds by contestant and case."""

log = logger(__name__)


class MeasuredTable:
    """Times by kind of work. Processes that share the folder measure a kind once.

    Args:
        folder: where the table is kept.
        name: first part of the name of its file.
        card: name of the device.
        facts: what else the times depend on.
        packages: those whose versions they depend on.
    """

    def __init__(
        self, folder: Path, name: str, card: str, facts: tuple[str, ...], packages: tuple[str, ...]
    ) -> None:
        self.card = card
        of = "\n".join((card, *facts, *map(_version, packages)))
        self._path = folder / f"{name}-{hashlib.sha256(of.encode()).hexdigest()[:16]}.json"

    def times(self, kind: str, names: Collection[str], measure: Callable[[], Times]) -> Times:
        """The times of a kind of work, measured unless the table has those of all `names`."""
        with self._locked() as keeps:
            table = self._read() if keeps else {}
            measured = table.get(kind, {})
            if not measured.keys() >= set(names):
                measured = measure()
                if keeps:
                    self._write(table | {kind: measured})
        return measured

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Whether there is a place for the table: the folder may be on a file system that is read
        only."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            log.warning("what is measured on %s is not kept: %s", self.card, error)
            yield False
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield True
        finally:
            os.close(file)

    def _read(self) -> dict[str, Times]:
        try:
            table: dict[str, Times] = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            log.warning("%s is no table, and is measured again", self._path)
            return {}
        return table

    def _write(self, table: dict[str, Times]) -> None:
        beside = self._path.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(table, indent=1))
        beside.replace(self._path)


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""
