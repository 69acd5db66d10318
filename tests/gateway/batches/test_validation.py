"""What is wrong with an input file is said line by line, before anything runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from baton_gateway.batches.validation import InvalidBatch, lines_of
from baton_gateway.durable.batch_store import Line
from tests.support.gateway.batch_records import CHAT, line


def read(content: bytes, cut: int = 7, most: int = 100) -> list[Line]:
    async def parts() -> AsyncIterator[bytes]:
        for at in range(0, len(content), cut):
            yield content[at : at + cut]

    return asyncio.run(lines_of(parts(), CHAT, most))


def test_lines_are_read_however_the_file_is_cut() -> None:
    content = line("a", model="m") + b"\n" + line("b", messages=["ü"]).rstrip()
    for cut in (1, 7, 10_000):
        first, second = read(content, cut)
        assert (first.number, first.custom_id, json.loads(first.body)) == (0, "a", {"model": "m"})
        assert (second.number, second.custom_id) == (2, "b")


def test_every_problem_has_its_line() -> None:
    bad = (
        (b"{\n", "invalid_json_line"),
        (b"[]\n", "invalid_json_line"),
        (line("a", stream=True), "unsupported_value"),
        (line("c") + line("c"), "duplicate_custom_id"),
        (line(""), "duplicate_custom_id"),
        (line("d", url="/v1/embeddings"), "mismatched_endpoint"),
        (line("e").replace(b"POST", b"GET"), "invalid_json_line"),
    )
    for content, code in bad:
        with pytest.raises(InvalidBatch) as refused:
            read(line("good") + content)
        [error] = refused.value.errors
        assert error.code == code and error.line == 1 + content.count(b"\n")


def test_files_that_are_too_large_or_empty() -> None:
    for content, code in ((b"", "empty_file"), (b"\n \n", "empty_file")):
        with pytest.raises(InvalidBatch) as refused:
            read(content)
        assert refused.value.errors[0].code == code
    with pytest.raises(InvalidBatch, match="more than 2 lines"):
        read(b"".join(line(str(n)) for n in range(3)), most=2)
    with pytest.raises(InvalidBatch) as many:
        read(b"x\n" * 1000, most=10_000)
    assert len(many.value.errors) == 50
