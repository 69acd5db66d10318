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
"""A list of numbers over several lines."""
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
"""The question that a table answers; the page has one section for each."""

Cell = str | int | float | list[int | float] | None
"""A label, one value, the values of several runs, or None if nothing was measured."""


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machine of a record."""

    name: str
    """Short name, also part of the file name."""
    processor: str
    cores: int | None = None
    """Cores in use; None if unknown."""
    instructions: tuple[str, ...] = ()
    """CPU extensions that kernels may use."""
    software: dict[str, str] = {}
    """Versions of the compared systems."""


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table. Tables of several records with the same title are merged in the page."""

    question: Question
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    command: str = ""
    """Command of the measurement; empty if unknown."""
    decimals: int | None = None
    """Decimal places of every value; None leaves them unchanged."""
    image: str = ""
    """A plot of the same run, relative to docs/."""
    notes: tuple[str, ...] = ()
    """Conditions and findings, one sentence each."""

    def __post_init__(self) -> None:
        """Reject rows that do not match the columns."""
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: {len(row)} cells for {len(self.columns)} columns")


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The results of one machine on one date."""

    date: date
    machine: Machine
    tables: tuple[Table, ...]

    @property
    def file_name(self) -> str:
        """`<date>-<machine>.json`."""
        return f"{self.date}-{self.machine.name}.json"


def read(path: Path) -> Record:
    """Read a record; `BatonError` if it does not match the schema or its name."""
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
    """Add tables to the record of a machine and today's date; they replace those with the same
    titles.

    Returns the path of the record. Raises `BatonError` if the file is a record of something else.
    """
    facts, day = machine.facts(), datetime.now(UTC).date()
    features = tuple(
        extension for flag, extension in _EXTENSIONS.items() if flag in facts["cpu_features"]
    )
    record = Record(day, Machine(name, facts["cpu"], facts["cores"], features), ())
    path = folder / record.file_name
    if path.is_file():
        record = read(path)
    merged = {(table.question, table.title): table for table in (*record.tables, *tables)}
    record = msgspec.structs.replace(record, tables=tuple(merged.values()))
    path.write_text(_json(record))
    return path


def _json(record: Record) -> str:
    """Encode with every row of a table on one line, and without empty fields."""
    content = msgspec.to_builtins(record)
    content["machine"] = _filled(content["machine"])
    content["tables"] = [_filled(table) for table in content["tables"]]
    text = json.dumps(content, indent=2, ensure_ascii=False)
    return _FLAT.sub(lambda match: f"[{_BREAK.sub(', ', match[1])}]", text) + "\n"


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value or value == 0}
