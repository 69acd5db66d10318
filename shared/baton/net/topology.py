"""Link table: the binding service, the connecting service, and the messages of each direction."""

from __future__ import annotations

from dataclasses import dataclass

from baton.protocol import (
    Abort,
    AdminCommand,
    AdminReply,
    Beat,
    Block,
    CacheReset,
    Close,
    Decode,
    DecodedText,
    Detokenize,
    Detokenized,
    Drain,
    DrainWorker,
    EncodeChat,
    Encoded,
    EncodeMedia,
    EncodePair,
    EncodeText,
    Failed,
    Fetch,
    Grant,
    Hello,
    HelloRequest,
    MediaEncoded,
    Message,
    Missing,
    Open,
    Opened,
    PageHashes,
    Plan,
    Prepare,
    Prepared,
    PreparedSpeech,
    PrepareSpeech,
    ProcessDied,
    Pull,
    Pulled,
    RequestError,
    ResetCache,
    Resize,
    ResizeDone,
    Result,
    Revoke,
    SetRole,
    Stats,
    Submit,
    TakenPixels,
    TakePixels,
    Tokens,
    TruncatePlan,
    Vocabulary,
    VocabularyBytes,
    WorkerCommand,
    WorkerReply,
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
    """Messages from client to server."""
    replies: tuple[type[Message], ...]
    """Messages from server to client."""


TOKENIZE = Link(
    "tokenize",
    server="tokenizer",
    client="gateway",
    requests=(*_LIFE, EncodeChat, EncodePair, EncodeText, Decode, Detokenize, Vocabulary),
    replies=(
        *_LIFE,
        HelloRequest,
        Encoded,
        DecodedText,
        Detokenized,
        VocabularyBytes,
        RequestError,
    ),
)
MEDIA = Link(
    "media",
    server="mm-preprocess",
    client="gateway",
    requests=(*_LIFE, Prepare, PrepareSpeech),
    replies=(*_LIFE, HelloRequest, Prepared, PreparedSpeech, RequestError),
)
FRONTEND = Link(
    "frontend",
    server="scheduler",
    client="gateway",
    requests=(*_LIFE, Submit, Abort, ResetCache, AdminCommand),
    replies=(*_LIFE, HelloRequest, Tokens, Failed, Stats, CacheReset, AdminReply),
)
FLEET = Link(
    "fleet",
    server="scheduler",
    client="worker",
    requests=(
        *_LIFE,
        Result,
        Pulled,
        MediaEncoded,
        Drain,
        DrainWorker,
        SetRole,
        ProcessDied,
        WorkerReply,
    ),
    replies=(
        *_LIFE,
        HelloRequest,
        Plan,
        TruncatePlan,
        PageHashes,
        Grant,
        Revoke,
        Pull,
        EncodeMedia,
        Drain,
        SetRole,
        Stats,
        WorkerCommand,
    ),
)

PAGES = Link(
    "pages",
    server="worker",
    client="worker",
    requests=(Open, Fetch, Close),
    replies=(Opened, Block, Missing),
)

PIXELS = Link(
    "pixels",
    server="gateway",
    client="worker",
    requests=(TakePixels,),
    replies=(TakenPixels,),
)
"""Between hosts: pixels go from their gateway to the worker that encodes them, without the
scheduler."""

CONTROL = Link(
    "control",
    server="supervisor",
    client="operator",
    requests=(Resize, SetRole),
    replies=(ResizeDone,),
)
"""Within one host, through the run directory: from an operator to `baton serve`."""

LINKS: tuple[Link, ...] = (TOKENIZE, MEDIA, FRONTEND, FLEET, PAGES, PIXELS, CONTROL)


def mermaid() -> str:
    """The link table as a Mermaid flowchart; a test compares it with ARCHITECTURE.md."""
    lines = ["flowchart LR", '    client(["OpenAI client"]) -- "HTTP, SSE, WebSocket" --> gateway']
    for link in LINKS:
        requests = ", ".join(m.__name__ for m in link.requests if m not in _LIFE)
        back = ", ".join(m.__name__ for m in link.replies if m not in (*_LIFE, HelloRequest))
        lines.append(f'    {link.client} -- "{requests}" --> {link.server}')
        lines.append(f'    {link.server} -. "{back}" .-> {link.client}')
    return "\n".join(lines) + "\n"
