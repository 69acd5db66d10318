"""The link table: who binds, who connects, and which messages each side may send."""

from __future__ import annotations

from dataclasses import dataclass

from baton.protocol import (
    Abort,
    Arranged,
    Assign,
    Beat,
    Block,
    CacheReset,
    Close,
    Cut,
    Decode,
    Detokenize,
    Detokenized,
    Drain,
    EncodeChat,
    Encoded,
    EncodeText,
    Failed,
    Fetch,
    Grant,
    Hello,
    Kept,
    Message,
    Missing,
    Open,
    Opened,
    Pieces,
    Plan,
    Prepare,
    Prepared,
    Pull,
    Pulled,
    Refused,
    ResetCache,
    Resize,
    Result,
    Retire,
    Revoke,
    Stats,
    Submit,
    Text,
    Tokens,
    Vocabulary,
    Who,
)

_LIFE: tuple[type[Message], ...] = (Hello, Beat)


@dataclass(frozen=True, slots=True)
class Link:
    """One kind of connection. The server binds a ROUTER, each client connects a DEALER."""

    name: str
    server: str
    """Service that binds."""
    client: str
    """Service that connects."""
    requests: tuple[type[Message], ...]
    """What the client may send."""
    replies: tuple[type[Message], ...]
    """What the server may send."""


TOKENIZE = Link(
    "tokenize",
    server="tokenizer",
    client="gateway",
    requests=(*_LIFE, EncodeChat, EncodeText, Decode, Detokenize, Vocabulary),
    replies=(*_LIFE, Who, Encoded, Text, Detokenized, Pieces, Refused),
)
MEDIA = Link(
    "media",
    server="mm-preprocess",
    client="gateway",
    requests=(*_LIFE, Prepare),
    replies=(*_LIFE, Who, Prepared, Refused),
)
FRONTEND = Link(
    "frontend",
    server="scheduler",
    client="gateway",
    requests=(*_LIFE, Submit, Abort, ResetCache),
    replies=(*_LIFE, Who, Tokens, Failed, Stats, CacheReset),
)
FLEET = Link(
    "fleet",
    server="scheduler",
    client="worker",
    requests=(*_LIFE, Result, Pulled, Drain, Retire, Assign),
    replies=(*_LIFE, Who, Plan, Cut, Kept, Grant, Revoke, Pull, Drain, Assign, Stats),
)

PAGES = Link(
    "pages",
    server="worker",
    client="worker",
    requests=(Open, Fetch, Close),
    replies=(Opened, Block, Missing),
)

CONTROL = Link(
    "control",
    server="supervisor",
    client="operator",
    requests=(Resize, Assign),
    replies=(Arranged,),
)
"""Of one host only, through its run directory: `baton serve` and whoever started it."""

LINKS: tuple[Link, ...] = (TOKENIZE, MEDIA, FRONTEND, FLEET, PAGES, CONTROL)


def mermaid() -> str:
    """The table as a Mermaid flowchart; ARCHITECTURE.md holds a copy that a test compares."""
    lines = ["flowchart LR", '    client(["OpenAI client"]) -- "HTTP, SSE" --> gateway']
    for link in LINKS:
        sent = ", ".join(m.__name__ for m in link.requests if m not in _LIFE)
        back = ", ".join(m.__name__ for m in link.replies if m not in (*_LIFE, Who))
        lines.append(f'    {link.client} -- "{sent}" --> {link.server}')
        lines.append(f'    {link.server} -. "{back}" .-> {link.client}')
    return "\n".join(lines) + "\n"
