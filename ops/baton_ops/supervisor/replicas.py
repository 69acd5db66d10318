"""Services of which `baton serve` may run several: gateways behind one port, tokenizers in a row.

Where one of them dies, stops or is cut off, its streams go on at another one, which is there
already: each is the spare of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from baton.net.discovery import socket_path
from baton.net.topology import TOKENIZE, Link


def names(service: str, count: int) -> list[str]:
    """What so many copies of a service are called: the service's own name when it is alone."""
    return [service] if count == 1 else [f"{service}-{n}" for n in range(1, count + 1)]


def tokenizer_addresses(run_dir: Path, count: int) -> dict[str, str]:
    """Where each of several tokenizers listens, by its name."""
    return {name: socket_path(run_dir, _link(name)) for name in names("tokenizer", count)}


def _link(name: str) -> Link:
    return Link(name, TOKENIZE.server, TOKENIZE.client, (), ())


def flags(run_dir: Path, counts: Mapping[str, int]) -> dict[str, list[str]]:
    """What each process is started with, by its name: its service, and where it listens if there
    are others."""
    started = {name: [s] for s, count in counts.items() for name in names(s, count)}
    if counts.get("tokenizer", 1) > 1:
        for name, address in tokenizer_addresses(run_dir, counts["tokenizer"]).items():
            started[name] += ["--bind", address]
    return started


def variables(run_dir: Path, counts: Mapping[str, int]) -> dict[str, str]:
    """What all services must know of this."""
    given = {}
    if counts.get("gateway", 1) > 1:
        given["BATON_GATEWAY_SHARED_PORT"] = "true"
    if (count := counts.get("tokenizer", 1)) > 1:
        addresses = tokenizer_addresses(run_dir, count).values()
        given["BATON_TOKENIZER_ADDRESS"] = ",".join(addresses)
    return given
