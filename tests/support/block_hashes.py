"""Block hashes of short prompts."""

from __future__ import annotations

from baton.protocol import Media, Sampling, Submit
from baton.protocol.token_columns import pack, unpack
from baton_scheduler.block_hashes import BlockHashes


def chain(
    tokens: list[int],
    size: int = 2,
    tenant: str = "",
    salt: bytes = b"",
    adapter: bytes = b"",
    media: tuple[Media, ...] = (),
) -> BlockHashes:
    root = {"tenant": tenant, "salt": salt, "adapter": adapter}
    submit = Submit(1, "r", pack(tokens), Sampling(9), media=media, **root)  # type: ignore[arg-type]
    return BlockHashes(submit, unpack(b""), size)
