"""Records of measurements: what fits the schema is read, anything else is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baton.errors import BatonError
from baton_ops.bench.record import Table, add, read, read_all


def fields(**others: Any) -> dict[str, Any]:
    """A record of one table."""
    table = {"question": "peers", "title": "Rate", "columns": ["system", "1"], "rows": [["a", 2.5]]}
    machine = {"name": "cpu", "processor": "a CPU"}
    return {"date": "2026-01-02", "machine": machine, "tables": [table | others]}


def written(folder: Path, content: Any, name: str = "2026-01-02-cpu.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def test_a_record_is_read(tmp_path: Path) -> None:
    record = read(written(tmp_path, fields()))
    assert record.machine.cores is None
    assert record.tables[0].rows == (("a", 2.5),)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (fields(colour="red"), "colour"),
        (fields() | {"speed": 1}, "speed"),
        (fields(rows=[["a", 1, 2]]), "3 cells for 2 columns"),
        (fields(rows=[["a", {}]]), "object"),
        (fields(question="taste"), "taste"),
        (fields() | {"date": "soon"}, "date"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(BatonError, match=message) as error:
        read(written(tmp_path, content))
    assert error.value.message.startswith("2026-01-02-cpu.json")


def test_a_file_has_the_name_of_its_record(tmp_path: Path) -> None:
    with pytest.raises(BatonError, match=r"record of 2026-01-02-cpu\.json"):
        read(written(tmp_path, fields(), "2026-01-03-cpu.json"))


def test_the_newest_record_comes_first(tmp_path: Path) -> None:
    later = fields() | {"date": "2026-01-03"}
    other = fields() | {"machine": {"name": "another", "processor": "a CPU"}}
    written(tmp_path, fields())
    written(tmp_path, later, "2026-01-03-cpu.json")
    written(tmp_path, other, "2026-01-02-another.json")
    names = [record.file_name for record in read_all(tmp_path)]
    assert names == ["2026-01-03-cpu.json", "2026-01-02-another.json", "2026-01-02-cpu.json"]


def test_tables_join_the_record_of_the_day(tmp_path: Path) -> None:
    """Those of a title that is there take its place; a row is one line of the file."""
    rate, size = (
        Table("peers", title, ("system", "1"), (("a [b]", 2.5),)) for title in ("Rate", "Size")
    )
    path = add(tmp_path, "cpu", [rate])
    assert read(path).tables == (rate,) and read(path).machine.processor
    other = Table("peers", "Rate", ("system",), (("c",),), notes=("A [note], twice.",))
    assert add(tmp_path, "cpu", [size, other]) == path
    assert read(path).tables == (other, size)
    assert '["c"]' in path.read_text() and '"command"' not in path.read_text()
