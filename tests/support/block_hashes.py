"""Block hashes of short prompts."""

from __future__ import annotations

from baton.protocol import Sampling, Submit
from baton.protocol.token_columns import pack, unpack
from baton_scheduler.block_hashes import BlockHashes


def chain(
    tokens: list[int], size: int = 2, tenant: str = "", salt: bytes = b"", adapter: bytes = b""
) -> BlockHashes:
    submit = Submit(1, "r", pack(tokens), Sampling(9), tenant=tenant, salt=salt, adapter=adapter)
    return BlockHashes(submit, unpack(b""), size)
