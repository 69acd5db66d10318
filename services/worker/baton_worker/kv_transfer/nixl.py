"""Blocks over NIXL: the target reads the source's lane by itself, through UCX.

NIXL (github.com/ai-dynamo/nixl) picks what the machine has: shared memory and `process_vm_readv`
inside a host, InfiniBand or RoCE between hosts. UCX neither encrypts nor asks who it talks to, so
without `trusted_network` it is confined to this host and opens no port. Whoever has the metadata of
an agent can read and write what it has registered: that is lanes, and never pages.

A lane's memory is ordinary memory of the host on both sides, also beside a GPU.
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
import numpy as np

from baton.protocol import Block
from baton.settings import default_environment
from baton_worker.config import Config
from baton_worker.kv_transfer.transport import (
    Bytes,
    CarriageError,
    Size,
    UnusableError,
)

_BACKEND = "UCX"
_PATIENCE_SECONDS = 5.0
"""How long one block may take."""
_NAP_SECONDS = 0.0001
_stuck: list[Bytes] = []
"""Memory that a read which did not end may still write to."""


class Terms(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What the target has to know of a source."""

    agent: str
    metadata: bytes
    address: int
    """Of the lane, in the source's memory."""


class Nixl:
    """Needs the package `nixl`. See `transport.Transport`."""

    def __init__(self, config: Config) -> None:
        if importlib.util.find_spec("nixl") is None:
            raise UnusableError("it is not installed: pip install 'baton-serve[nixl]'")
        self.reach: Literal["host", "network"] = "network" if config.trusted_network else "host"
        self._lock = threading.Lock()
        self._known: Counter[str] = Counter()
        self._made: Any = None
        # It takes about a second, which a worker that passes nothing on need not wait.
        if config.role != "both" or config.kv_transfer_config:
            self._agent()

    def _agent(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = _agent(self.reach == "network")
            return self._made

    def send(self, size: Size) -> NixlSender:
        """Registered memory for a new lane. Raises `UnusableError`."""
        return NixlSender(self._agent(), size)

    def receive(self, terms: bytes, size: Size) -> NixlReceiver:
        """The other end of a lane. Raises `CarriageError`."""
        try:
            told = msgspec.msgpack.decode(terms, type=Terms)
            agent = self._agent()
            self._meet(agent, told)
            return NixlReceiver(self, agent, told, size)
        except Exception as error:  # What the library raises has no base of its own.
            raise CarriageError(f"its NIXL agent cannot be reached: {error}") from error

    def close(self) -> None:
        """The agent goes with its last lane."""

    def _meet(self, agent: Any, told: Terms) -> None:
        """Learn, or learn anew, what an agent has registered: each lane adds to it."""
        with self._lock:
            name = agent.add_remote_agent(told.metadata)
            if name not in (told.agent, told.agent.encode()):
                raise ValueError(f"it says that it is {told.agent}, and its metadata {name!r}")
            self._known[told.agent] += 1

    def part(self, name: str) -> None:
        """One lane less to an agent: forget it with its last one."""
        with self._lock:
            self._known[name] -= 1
            if not self._known[name]:
                del self._known[name]
                self._made.remove_remote_agent(name)


class NixlSender:
    """The source's half."""

    def __init__(self, agent: Any, size: Size) -> None:
        self._agent = agent
        self._memory = np.empty(size, np.uint8)
        self._registered = agent.register_memory([_region(self._memory)], "DRAM")
        terms = Terms(agent.name, agent.get_agent_metadata(), self._memory.ctypes.data)
        self.terms = msgspec.msgpack.encode(terms)

    def room(self, place: int, size: int) -> Bytes:
        """See `transport.Sender`."""
        room: Bytes = self._memory[place, :size]
        return room

    def data(self, place: int, size: int) -> bytes:
        """Nothing: the target reads the lane."""
        return b""

    def tend(self) -> None:
        """Let UCX make progress. Its own thread would take a whole core."""
        self._agent.get_new_notifs()

    def close(self) -> None:
        """Nobody can read the lane any more."""
        self._agent.deregister_memory(self._registered)


class NixlReceiver:
    """The target's half: memory of its own into which it reads the source's."""

    def __init__(self, owner: Nixl, agent: Any, told: Terms, size: Size) -> None:
        self._owner, self._agent, self._told = owner, agent, told
        self._memory = np.empty(size, np.uint8)
        self._registered = agent.register_memory([_region(self._memory)], "DRAM")

    def take(self, block: Block, place: int) -> Bytes:
        """See `transport.Receiver`."""
        taken: Bytes = self._memory[place, : block.size]
        here = [(taken.ctypes.data, block.size, 0)]
        there = [(self._told.address + place * self._memory.shape[1], block.size, 0)]
        try:
            state = self._read(here, there)
        except Exception as error:
            raise CarriageError(f"NIXL could not read a block: {error}") from error
        if state != "DONE":
            raise CarriageError(f"NIXL could not read a block: it says {state}")
        return taken

    def _read(self, here: list[tuple[int, int, int]], there: list[tuple[int, int, int]]) -> str:
        agent = self._agent
        local, remote = agent.get_xfer_descs(here, "DRAM"), agent.get_xfer_descs(there, "DRAM")
        handle = agent.initialize_xfer("READ", local, remote, self._told.agent)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        state: str = agent.transfer(handle)
        while state == "PROC" and time.monotonic() < deadline:
            time.sleep(_NAP_SECONDS)
            state = agent.check_xfer_state(handle)
        if state == "PROC":
            _stuck.append(self._memory)
        else:
            agent.release_xfer_handle(handle)
        return state

    def close(self) -> None:
        """Give the memory back, and the agent with its last lane."""
        self._agent.deregister_memory(self._registered)
        self._owner.part(self._told.agent)


def _agent(anywhere: bool) -> Any:
    """An agent of this process. Raises `UnusableError`."""
    # Both libraries read these when they are loaded. An operator who has set them has the last
    # word. Inside a host UCX has no way to be told that a peer is gone, hence the mode.
    default_environment("NIXL_LOG_LEVEL", "ERROR")
    default_environment("UCX_LOG_LEVEL", "error")
    if not anywhere:
        default_environment("UCX_TLS", "self,sm")
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


def _region(memory: Bytes) -> tuple[int, int, int, str]:
    return (memory.ctypes.data, memory.nbytes, 0, "")
