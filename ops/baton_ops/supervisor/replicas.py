"""Service replicas under `baton serve`: gateways behind one port, several tokenizers.

If a replica exits, stops or is cut off, the others take over its streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from baton.net.discovery import socket_path
from baton.net.topology import TOKENIZE, Link


def names(service: str, count: int) -> list[str]:
    """Return the process names of `count` replicas; a single one has the service's own name."""
    return [service] if count == 1 else [f"{service}-{n}" for n in range(1, count + 1)]


def tokenizer_addresses(run_dir: Path, count: int) -> dict[str, str]:
    """Return the address of each tokenizer replica by name."""
    return {name: socket_path(run_dir, _link(name)) for name in names("tokenizer", count)}


def _link(name: str) -> Link:
    return Link(name, TOKENIZE.server, TOKENIZE.client, (), ())


def flags(run_dir: Path, counts: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the arguments of each process by name: its service and, for replicas, its address."""
    started = {name: [s] for s, count in counts.items() for name in names(s, count)}
    if counts.get("tokenizer", 1) > 1:
        for name, address in tokenizer_addresses(run_dir, counts["tokenizer"]).items():
            started[name] += ["--bind", address]
    return started


def variables(run_dir: Path, counts: Mapping[str, int]) -> dict[str, str]:
    """Return the environment variables that announce the replicas to all services."""
    values = {}
    if counts.get("gateway", 1) > 1:
        values["BATON_GATEWAY_SHARED_PORT"] = "true"
    if (count := counts.get("tokenizer", 1)) > 1:
        addresses = tokenizer_addresses(run_dir, count).values()
        values["BATON_TOKENIZER_ADDRESS"] = ",".join(addresses)
    return values
