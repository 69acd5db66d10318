"""Blocks over NIXL: the target reads the source's transfer buffer through UCX.

NIXL (github.com/ai-dynamo/nixl) selects the hardware path: shared memory and `process_vm_readv`
within a host, InfiniBand or RoCE between hosts. UCX neither encrypts nor authenticates, so without
`trusted_network` it is confined to this host and opens no port. A process with an agent's metadata
can read and write the memory that the agent registered: transfer buffers, never pages.

Transfer buffers are host memory on both sides, also with a GPU; `nixl_gpu` has them on GPUs.
"""

from __future__ import annotations

import importlib
import importlib.util
import secrets
import threading
import time
from collections import Counter
from typing import Any, Literal

import msgspec

from baton.protocol import Block
from baton.settings import default_environment
from baton_worker.config import Config
from baton_worker.kv_transfer.nixl_buffers import Buffer, HostBuffer, Region, Terms
from baton_worker.kv_transfer.transport import BlockBuffer, Size, TransportError, UnusableError

_BACKEND = "UCX"
_TIMEOUT_SECONDS = 5.0
"""Timeout of one block."""
_NAP_SECONDS = 0.0001
_stuck: list[Buffer] = []
"""Memory that an unfinished read may still write to; kept alive."""


class Nixl:
    """Needs the package `nixl`. See `transport.Transport`."""

    on_device = False
    local_transports = "self,sm"
    """UCX's transports within a host."""

    def __init__(self, config: Config) -> None:
        if importlib.util.find_spec("nixl") is None:
            raise UnusableError("it is not installed: pip install 'baton-serve[nixl]'")
        self.reach: Literal["host", "network"] = "network" if config.trusted_network else "host"
        self._lock = threading.Lock()
        self._known: Counter[str] = Counter()
        self._made: Any = None
        # Creating an agent takes about a second, which a worker without transfers need not wait.
        if config.role != "both" or config.kv_transfer_config:
            self._agent()

    def _agent(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = _agent(self.reach == "network", self.local_transports)
            return self._made

    def send(self, size: Size) -> NixlSender:
        """Registered memory for a new connection. Raises `UnusableError`."""
        agent = self._agent()
        try:
            return NixlSender(agent, self.buffer(agent, size))
        except (RuntimeError, ValueError) as error:  # No memory, or of a kind that UCX lacks.
            raise UnusableError(f"memory cannot be registered: {error}") from error

    def buffer(self, agent: Any, size: Size) -> Buffer:
        """The transfer buffer of a new connection."""
        return HostBuffer(agent, size)

    def receive(self, terms: bytes, size: Size) -> NixlReceiver:
        """The target's end of a connection. Raises `TransportError`."""
        try:
            source = msgspec.msgpack.decode(terms, type=Terms)
            agent = self._agent()
            self._meet(agent, source)
            return NixlReceiver(self, agent, source, size, self.buffer(agent, size))
        except Exception as error:  # The library's errors have no common base.
            raise TransportError(f"its NIXL agent cannot be reached: {error}") from error

    def close(self) -> None:
        """No effect: the agent is freed with its last connection."""

    def _meet(self, agent: Any, source: Terms) -> None:
        """Load a remote agent's metadata, again for each connection: each registers more memory."""
        with self._lock:
            name = agent.add_remote_agent(source.metadata)
            if name not in (source.agent, source.agent.encode()):
                raise ValueError(f"it says that it is {source.agent}, and its metadata {name!r}")
            self._known[source.agent] += 1

    def part(self, name: str) -> None:
        """Drop one connection of a remote agent; remove the agent with the last one."""
        with self._lock:
            self._known[name] -= 1
            if not self._known[name]:
                del self._known[name]
                self._made.remove_remote_agent(name)


class NixlSender:
    """The source's end."""

    def __init__(self, agent: Any, buffer: Buffer) -> None:
        self._agent, self._buffer = agent, buffer
        self.terms = msgspec.msgpack.encode(buffer.terms())

    def view(self, place: int, size: int) -> BlockBuffer:
        """See `transport.Sender`."""
        return self._buffer.view(place, size)

    def data(self, place: int, size: int) -> bytes:
        """Empty: the target reads the transfer buffer."""
        return b""

    def poll(self) -> None:
        """Let UCX make progress. UCX's own progress thread would occupy a core."""
        self._agent.get_new_notifs()

    def close(self) -> None:
        """Deregister the memory."""
        self._buffer.close()


class NixlReceiver:
    """The target's end: a local buffer into which it reads the source's."""

    def __init__(self, owner: Nixl, agent: Any, source: Terms, size: Size, buffer: Buffer) -> None:
        self._owner, self._agent, self._source = owner, agent, source
        self._buffer, self._place_bytes = buffer, size.place_bytes

    def take(self, block: Block, place: int) -> BlockBuffer:
        """See `transport.Receiver`."""
        address = self._source.address + place * self._place_bytes
        there = (address, block.size, self._source.device)
        try:
            state = self._read(self._buffer.region(place, block.size), there)
        except Exception as error:
            raise TransportError(f"NIXL could not read a block: {error}") from error
        if state != "DONE":
            raise TransportError(f"NIXL could not read a block: it says {state}")
        return self._buffer.view(place, block.size)

    def _read(self, here: Region, there: Region) -> str:
        agent, kind = self._agent, self._buffer.kind
        local, remote = agent.get_xfer_descs([here], kind), agent.get_xfer_descs([there], kind)
        handle = agent.initialize_xfer("READ", local, remote, self._source.agent)
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        state: str = agent.transfer(handle)
        while state == "PROC" and time.monotonic() < deadline:
            time.sleep(_NAP_SECONDS)
            state = agent.check_xfer_state(handle)
        if state == "PROC":
            _stuck.append(self._buffer)
        else:
            agent.release_xfer_handle(handle)
        return state

    def close(self) -> None:
        """Deregister the memory; drop the remote agent with its last connection."""
        self._buffer.close()
        self._owner.part(self._source.agent)


def _agent(anywhere: bool, local_transports: str) -> Any:
    """A NIXL agent of this process. Raises `UnusableError`."""
    # Both libraries read these variables when they are loaded; values set by the operator take
    # precedence. Within a host UCX cannot detect that a peer has exited, hence the error mode.
    default_environment("NIXL_LOG_LEVEL", "ERROR")
    default_environment("UCX_LOG_LEVEL", "error")
    if not anywhere:
        default_environment("UCX_TLS", local_transports)
    try:
        api = importlib.import_module("nixl").__dict__
    except ImportError as error:
        raise UnusableError(f"it cannot be loaded: {error}") from error
    mode = "peer" if anywhere else "none"
    try:
        sync = api["nixl_thread_sync_t"].NIXL_THREAD_SYNC_STRICT
        config = api["nixl_agent_config"](enable_prog_thread=False, backends=[], sync_mode=sync)
        agent = api["nixl_agent"](f"baton-{secrets.token_hex(8)}", config)
        agent.create_backend(_BACKEND, {"ucx_error_handling_mode": mode})
    except Exception as error:
        raise UnusableError(f"it does not start here: {error}") from error
    return agent
