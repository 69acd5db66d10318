"""`baton run-batch -i IN -o OUT`: answers a file of requests, in OpenAI's batch format.

baton run-batch -i in.jsonl -o out.jsonl --model org/name     starts a server
baton run-batch -i in.jsonl -o out.jsonl --url http://...     uses a running server

An answer is written as it arrives, so a stopped run resumes at its position: lines that OUT has an
answer for are not sent again.
"""

import asyncio
import json
import shlex
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import httpx
from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from baton.errors import BatonError, SettingsError
from baton.settings import Settings
from baton_ops.bench.server import served
from baton_ops.server_url import ServerUrl

_AGAIN = frozenset({429, 503})
_LONGEST_WAIT = 60.0
_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")


class RunBatch(Settings, prefix="run-batch"):
    """Answer a file of requests, one JSON object a line, in OpenAI's batch format.

    -i and -o are short for --input-file and --output-file, which are required. Give --model to
    start a server for the run, or --url of a running one.
    """

    input_file: Path = Field(validation_alias=AliasChoices("input-file", "i"))
    """File of requests."""
    output_file: Path = Field(validation_alias=AliasChoices("output-file", "o"))
    """File of answers; existing answers are kept."""
    url: ServerUrl = ""
    """URL of a running server; empty starts one for `model`."""
    key: str = ""
    """API key, if the server wants one."""
    model: str = ""
    """Model to serve, as in `baton serve MODEL`; its log is written next to the output file."""
    serve_arguments: str = ""
    """Further flags of `baton serve`."""
    start_seconds: float = Field(600.0, gt=0)
    """Time limit for the server's start."""
    concurrency: int = Field(64, ge=1)
    """Requests in flight."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # Flags only: BATON_MODEL would contradict --url.
        return (init_settings,)

    def answer(self) -> int:
        """Answer all lines without an answer. Returns the number of refused lines."""
        if bool(self.url) == bool(self.model):
            raise SettingsError("Give either --url or --model.")
        with self._server() as url:
            return asyncio.run(self._run(url))

    def _server(self) -> AbstractContextManager[str]:
        if self.url:
            return nullcontext(self.url)
        log = self.output_file.with_suffix(".serve.log")
        return served(self.model, shlex.split(self.serve_arguments), log, self.start_seconds)

    async def _run(self, url: str) -> int:
        lines = read_lines(self.input_file)
        answers = answered(self.output_file)
        left = [line for line in lines if line.custom_id not in answers]
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=None) as client:
            with self.output_file.open("a") as output:
                return await run(client, left, output, self.concurrency, len(lines))


class Line(NamedTuple):
    """One request."""

    custom_id: str
    url: str
    body: dict[str, Any]


def read_lines(path: Path) -> list[Line]:
    """Return the requests of a file. Raises `SettingsError` naming the first invalid line."""
    lines: list[Line] = []
    custom_ids: set[str] = set()
    try:
        text = path.read_text()
    except OSError as error:
        raise SettingsError(f"Cannot read {path}: {error.strerror}.") from error
    for number, row in enumerate(text.splitlines(), start=1):
        if not row.strip():
            continue
        line = _line(row, f"{path}:{number}")
        if line.custom_id in custom_ids:
            raise SettingsError(f"{path}:{number}: the custom_id '{line.custom_id}' appears twice.")
        custom_ids.add(line.custom_id)
        lines.append(line)
    return lines


def _line(row: str, place: str) -> Line:
    try:
        fields = json.loads(row)
        line = Line(str(fields["custom_id"]), fields["url"], dict(fields["body"]))
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{place}: this is no request with custom_id, url and body.") from error
    if line.url not in _PATHS:
        raise SettingsError(f"{place}: the url '{line.url}' is none of {', '.join(_PATHS)}.")
    return line


def answered(path: Path) -> set[str]:
    """Return the lines that a file has answers for. A line that a stopped run has written partly is
    removed."""
    if not path.exists():
        return set()
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if len(complete) < len(content):
        path.write_bytes(complete)
    return {json.loads(row)["custom_id"] for row in complete.splitlines()}


async def run(
    client: httpx.AsyncClient, lines: list[Line], output: TextIO, concurrency: int, total: int
) -> int:
    """Answer lines, and write each answer as it arrives. Returns the number of refused lines.

    Args:
        total: lines of the complete file, including those that are done.
    """
    failed = 0
    with _progress() as progress:
        task = progress.add_task("requests", total=total, completed=total - len(lines), errors="")
        async for result in _results(client, lines, concurrency):
            response = result["response"]
            failed += response is None or response["status_code"] >= 400
            output.write(json.dumps(result, ensure_ascii=False) + "\n")
            output.flush()
            errors = f"[red]{failed} failed[/]" if failed else ""
            progress.update(task, advance=1, errors=errors)
    return failed


async def _results(
    client: httpx.AsyncClient, lines: list[Line], concurrency: int
) -> AsyncIterator[dict[str, Any]]:
    """Yield results as they arrive, with at most `concurrency` requests in flight."""
    waiting: Iterator[Line] = iter(lines)
    running: set[asyncio.Task[dict[str, Any]]] = set()
    try:
        while True:
            for line in waiting:
                running.add(asyncio.create_task(_answer(client, line)))
                if len(running) >= concurrency:
                    break
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()


async def _answer(client: httpx.AsyncClient, line: Line) -> dict[str, Any]:
    """Send one line until its answer is final."""
    name = f"batch_req_{uuid.uuid4().hex}"
    result: dict[str, Any] = {"id": name, "custom_id": line.custom_id, "response": None}
    while True:
        try:
            answer = await client.post(line.url, json=line.body)
        except httpx.HTTPError as error:
            message = f"The server cannot be reached: {error}"
            return result | {"error": {"code": "connection_error", "message": message}}
        final = answer.headers.get("x-should-retry") == "false"
        if answer.status_code not in _AGAIN or final:
            break
        await asyncio.sleep(min(_LONGEST_WAIT, float(answer.headers.get("retry-after", "1"))))
    response = {
        "status_code": answer.status_code,
        "request_id": answer.headers.get("x-request-id", ""),
        "body": answer.json(),
    }
    return result | {"response": response, "error": None}


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[errors]}"),
        console=Console(stderr=True),
    )


def main() -> None:
    """Run. Exits with 1 when a line was refused, with 2 when nothing could be run."""
    try:
        failed = RunBatch.load(sys.argv[1:]).answer()
    except BatonError as error:
        print(f"baton run-batch: {error.message}", file=sys.stderr)
        sys.exit(2)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
