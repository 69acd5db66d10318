"""Published measurements: one file of docs/benchmarks for each machine and date."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from baton.errors import BatonError
from baton_ops.bench import machine

_FLAT = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")
"""A list of values over several lines."""
_BREAK = re.compile(r",\n\s+")
_EXTENSIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX512-BF16",
    "amx_bf16": "AMX",
}

Question = Literal[
    "peers",
    "latency",
    "images",
    "service",
    "memory",
    "scaling",
    "scheduler",
    "models",
    "kernels",
    "speculation",
    "quality",
]
"""What a table answers; the page has one section for each."""

Cell = str | int | float | list[int | float] | None
"""A label, one value, the values of several runs, or nothing where nothing was measured."""


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the measurements of a record ran on."""

    name: str
    """Short name, also part of the file name."""
    processor: str
    cores: int | None = None
    """Cores in use; None where they were not recorded."""
    instructions: tuple[str, ...] = ()
    """Extensions that kernels could use."""
    software: dict[str, str] = {}
    """Versions of what was compared."""


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table. Tables of several records with one title are one table of the page."""

    question: Question
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    command: str = ""
    """What measures it; empty where the command was not recorded."""
    decimals: int | None = None
    """Digits behind the point of every value; None leaves them as they are."""
    image: str = ""
    """A plot of the same run, relative to docs/."""
    notes: tuple[str, ...] = ()
    """Conditions and findings, one sentence each."""

    def __post_init__(self) -> None:
        """Refuse rows that do not fit the columns."""
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: {len(row)} cells for {len(self.columns)} columns")


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one machine gave on one date."""

    date: date
    machine: Machine
    tables: tuple[Table, ...]

    @property
    def file_name(self) -> str:
        """`<date>-<machine>.json`."""
        return f"{self.date}-{self.machine.name}.json"


def read(path: Path) -> Record:
    """The record in a file; `BatonError` where it does not fit the schema or its name."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Record)
    except msgspec.DecodeError as error:
        raise BatonError(f"{path.name}: {error}") from error
    if record.file_name != path.name:
        raise BatonError(f"{path.name} holds the record of {record.file_name}.")
    return record


def read_all(folder: Path) -> Sequence[Record]:
    """All records of a folder, the newest first."""
    records = sorted(map(read, folder.glob("*.json")), key=lambda r: r.machine.name)
    return sorted(records, key=lambda r: r.date, reverse=True)


def add(folder: Path, name: str, tables: Iterable[Table]) -> Path:
    """Put tables into the record of a machine and this day, in place of those of the same titles.

    Returns the path of the record. Raises `BatonError` where the file there is no record.
    """
    facts, day = machine.facts(), datetime.now(UTC).date()
    features = tuple(said for flag, said in _EXTENSIONS.items() if flag in facts["cpu_features"])
    found = Record(day, Machine(name, facts["cpu"], facts["cores"], features), ())
    path = folder / found.file_name
    if path.is_file():
        found = read(path)
    merged = {(table.question, table.title): table for table in (*found.tables, *tables)}
    found = msgspec.structs.replace(found, tables=tuple(merged.values()))
    path.write_text(_json(found))
    return path


def _json(found: Record) -> str:
    """With every row of a table on one line, and without what is empty."""
    content = msgspec.to_builtins(found)
    content["machine"] = _filled(content["machine"])
    content["tables"] = [_filled(table) for table in content["tables"]]
    text = json.dumps(content, indent=2, ensure_ascii=False)
    return _FLAT.sub(lambda found: f"[{_BREAK.sub(', ', found[1])}]", text) + "\n"


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value or value == 0}
