"""`baton parse`, as people and as machines call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from baton.errors import InvalidRequest, SettingsError
from baton_ops.commands.parse import Parse, read_cases

TEXT = 'so</think>Yes. <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
ARGUMENTS = ("--tool-parser", "hermes", "--reasoning-parser", "qwen3")


def run(text: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "baton", "parse", *arguments]
    return subprocess.run(
        command, input=text.encode(), capture_output=True, timeout=60, check=False
    )


def lines(text: str, *arguments: str) -> list[dict[str, Any]]:
    done = run(text, *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def together(deltas: list[dict[str, Any]]) -> tuple[str, str, str]:
    """(reasoning, content, arguments) of all deltas."""
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    return (
        "".join(delta.get("reasoning", "") for delta in deltas),
        "".join(delta.get("content", "") for delta in deltas),
        "".join(call["function"]["arguments"] for call in calls),
    )


def test_a_whole_text() -> None:
    (found,) = lines(TEXT, *ARGUMENTS)
    assert found.pop("tool_calls")[0] | {"id": ""} == {
        "id": "",
        "name": "f",
        "arguments": '{"a": 1}',
    }
    assert found == {"reasoning": "so", "content": "Yes. ", "finish_reason": "tool_calls"}


def test_a_stream() -> None:
    *deltas, last = lines(TEXT, *ARGUMENTS, "--stream", "--chunk", "3")
    assert last == {"finish_reason": "tool_calls"}
    assert together(deltas) == ("so", "Yes. ", '{"a": 1}')
    first = next(delta for delta in deltas if "tool_calls" in delta)["tool_calls"][0]
    assert first["index"] == 0 and first["id"] and first["type"] == "function"


def test_an_error_is_a_line_of_the_stream() -> None:
    *_, error, last = lines('<tool_call>{"name": "f", "arguments": {', *ARGUMENTS[:2], "--stream")
    assert error["error"]["type"] == "incomplete_tool_call" and error["error"]["index"] == 0
    assert last == {"finish_reason": "stop"}


def test_thinking_off_and_no_calls_wanted() -> None:
    (found,) = lines(TEXT, *ARGUMENTS, "--thinking", "off", "--tool-choice", "none")
    assert found["content"] == TEXT and found["tool_calls"] == []


def test_tools_give_types(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    (tmp_path / "tools.json").write_text(json.dumps([tool]))
    text = "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"
    arguments = ("--tool-parser", "glm45", "--tools", str(tmp_path / "tools.json"))
    assert lines(text, *arguments)[0]["tool_calls"][0]["arguments"] == '{"a": "1"}'


def test_line_ends_are_kept() -> None:
    assert lines("a\r\nb\r", "--tool-parser", "json")[0]["content"] == "a\r\nb\r"


def test_an_unknown_name_exits_with_2_and_lists_the_names() -> None:
    done = run("", "--tool-parser", "hermez")
    assert done.returncode == 2 and b"Known: hermes, " in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_chunk_that_is_no_number() -> None:
    with pytest.raises(InvalidRequest, match="--chunk is a number"):
        list(Parse(stream=True, chunk="x")._read("abc"))


def write(path: Path, *cases: object) -> Path:
    path.write_text("\n".join(c if isinstance(c, str) else json.dumps(c) for c in cases))
    return path


def test_cases(tmp_path: Path) -> None:
    case = {"id": "a", "tool_parser": "hermes", "reasoning_parser": "qwen3", "text": TEXT}
    found = list(read_cases(write(tmp_path / "c", case | {"chunks": [0, 1, [5, 9]]})))
    assert [(line["id"], line["chunk"]) for line in found] == [("a", 0), ("a", 1), ("a", [5, 9])]
    whole, *streamed = found
    for line in streamed:
        assert line["finish_reason"] == whole["finish_reason"] == "tool_calls"
        assert together(line["deltas"]) == ("so", "Yes. ", '{"a": 1}')
    assert whole["content"] == "Yes. " and "error" not in whole


def test_a_case_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    good = {"id": "good", "text": "x", "chunks": [0]}
    found = list(
        read_cases(
            write(
                tmp_path / "c",
                "not JSON",
                "[]",
                {"id": "name", "tool_parser": "hermez", "text": "x", "chunks": [0]},
                {"id": "text", "chunks": [0, 2]},
                {"id": "chunk", "text": "x", "chunks": ["x"]},
                good,
            )
        )
    )
    assert [line["id"] for line in found] == [None, None, "name", "text", "text", "chunk", "good"]
    assert all("error" in line for line in found[:-1])
    assert found[-1]["content"] == "x"


def test_an_error_of_a_case(tmp_path: Path) -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a"'
    case = {"id": 1, "tool_parser": "hermes", "text": text, "chunks": [0, 4]}
    whole, cut = read_cases(write(tmp_path / "c", case))
    assert whole["error"] == cut["error"] and whole["tool_calls"] == []
    assert whole["finish_reason"] == cut["finish_reason"] == "stop"


def test_the_command_does_without_torch() -> None:
    code = "import sys, baton_ops.commands.parse; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing, bad = tmp_path / "missing", write(tmp_path / "bad", "x")
    for parse, said in (
        (Parse(tools=missing), "Cannot read --tools"),
        (Parse(tools=bad), "is no JSON"),
        (Parse(cases=missing), "Cannot read --cases"),
    ):
        with pytest.raises(SettingsError, match=said):
            list(parse.lines() if parse.cases else parse._read(""))
