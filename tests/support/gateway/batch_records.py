"""Batches for the tests of what stores and runs them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from baton_gateway.config import Config
from baton_gateway.durable.batch_file import open_batch_file
from baton_gateway.durable.batch_record import Batch
from baton_gateway.durable.batch_store import BatchStore, StoredBatch
from baton_gateway.durable.file_store import FileStore
from baton_gateway.durable.sqlite_file import SqliteFile

CHAT = "/v1/chat/completions"


class Stores:
    """An open store in a folder."""

    def __init__(self, folder: Path) -> None:
        self.file: SqliteFile = open_batch_file(Config(run_dir=folder))
        self.batches = BatchStore(self.file)
        self.files = FileStore(self.file, 10**9)

    async def upload(self, content: bytes, owner: str = "") -> str:
        """Store a whole file. Returns its id."""
        name = await self.files.begin(owner, "in.jsonl", "batch")
        await self.files.append(name, content)
        return (await self.files.finish(name)).id

    async def download(self, name: str | None) -> list[dict[str, Any]]:
        """Return the lines of a file."""
        assert name is not None
        content = b"".join([part async for part in self.files.read(name)])
        return [json.loads(line) for line in content.splitlines()]


def line(custom_id: str, url: str = CHAT, **body: Any) -> bytes:
    """One line of an input file."""
    about = {"custom_id": custom_id, "method": "POST", "url": url, "body": body}
    return json.dumps(about).encode() + b"\n"


def stored(name: str, input_file: str, seconds: int = 3600, **fields: Any) -> StoredBatch:
    """A batch that has just been made."""
    now = int(time.time())
    batch = Batch(
        id=name,
        endpoint=CHAT,
        input_file_id=input_file,
        completion_window="1h",
        status="validating",
        created_at=now,
        expires_at=now + seconds,
        **fields,
    )
    return StoredBatch(batch, "", "")
