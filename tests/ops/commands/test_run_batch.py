"""A file of requests, answered line by line, in any number of runs."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest

from baton.errors import SettingsError
from baton_ops.commands.run_batch import Line, RunBatch, answered, main, read_lines, run

CHAT = "/v1/chat/completions"


def line(name: str, url: str = CHAT) -> str:
    about = {"custom_id": name, "method": "POST", "url": url, "body": {"name": name}}
    return json.dumps(about) + "\n"


class Server:
    """Answers with the request; "bad" is refused, "busy" at first, "gone" never reached."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        name = json.loads(request.content)["name"]
        self.seen.append(name)
        if name == "gone":
            raise httpx.ConnectError("refused")
        status = 400 if name == "bad" else 200
        if name == "busy" and self.seen.count("busy") == 1:
            status = 503
        headers = {"x-request-id": "req_1", "retry-after": "0"}
        return httpx.Response(status, json={"name": name}, headers=headers)


def answer(server: Server, lines: list[Line], output: io.StringIO) -> int:
    async def main() -> int:
        transport = httpx.MockTransport(server)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await run(client, lines, output, 2, len(lines))

    return asyncio.run(main())


def test_every_line_has_one_answer(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(map(line, ("a", "bad", "busy", "gone", "b"))) + "\n")
    server, output = Server(), io.StringIO()
    assert answer(server, read_lines(source), output) == 2
    results = {r["custom_id"]: r for r in map(json.loads, output.getvalue().splitlines())}
    assert sorted(results) == ["a", "b", "bad", "busy", "gone"]
    assert results["a"]["response"] == {
        "status_code": 200,
        "request_id": "req_1",
        "body": {"name": "a"},
    }
    assert results["bad"]["response"]["status_code"] == 400
    assert results["busy"]["response"]["status_code"] == 200 and server.seen.count("busy") == 2
    assert results["gone"]["error"]["code"] == "connection_error"


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    assert answered(output) == set()
    output.write_text('{"custom_id": "a"}\n{"custom_id": "b"}\n{"custom_')
    assert answered(output) == {"a", "b"}
    assert output.read_text() == '{"custom_id": "a"}\n{"custom_id": "b"}\n'


def test_what_is_no_request_is_named_with_its_line(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    for bad, said in (
        ("{}\n", ":2: this is no request"),
        ("x\n", ":2: this is no request"),
        (line("a"), ":2: the custom_id 'a' appears twice"),
        (line("b", "/v1/images"), ":2: the url '/v1/images' is none of"),
    ):
        source.write_text(line("a") + bad)
        with pytest.raises(SettingsError, match=said):
            read_lines(source)
    with pytest.raises(SettingsError, match="Cannot read"):
        read_lines(tmp_path / "missing")


def test_a_model_is_served_for_the_time_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def served(*args: object) -> nullcontext[str]:
        asked.extend(args)
        return nullcontext("http://127.0.0.1:9")

    monkeypatch.setattr("baton_ops.commands.run_batch.served", served)
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(line("a"))
    flags = ["-i", str(source), "-o", str(output), "--model", "org/name"]
    assert RunBatch.load([*flags, "--serve-arguments", "--max-num-seqs 8"]).answer() == 1
    assert asked == ["org/name", ["--max-num-seqs", "8"], tmp_path / "out.serve.log", 600.0]


def test_flags_are_those_of_vllm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*more: str) -> object:
        monkeypatch.setattr("sys.argv", ["baton run-batch", *flags, *more])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    monkeypatch.setenv("BATON_MODEL", "org/name")
    source = tmp_path / "in.jsonl"
    source.write_text(line("a"))
    flags = ["-i", str(source), "-o", str(tmp_path / "out.jsonl")]
    assert call() == 2 and "either --url or --model" in capsys.readouterr().err
    assert call("--url", "http://127.0.0.1:9") == 1
    assert "connection_error" in (tmp_path / "out.jsonl").read_text()
