"""`python -m baton_worker.kv_transfer`: throughput of each transport between two local processes.

Source and target use different page sizes. All transports alternate within one run, so their ratios
stay comparable under noise.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from baton.protocol import Grant, Pull, Pulled
from baton.protocol.token_columns import pack
from baton_worker.config import Config
from baton_worker.kv_cache.cache import KVCache
from baton_worker.kv_transfer.exporter import Exporter
from baton_worker.kv_transfer.importer import Importer
from baton_worker.kv_transfer.manager import host, usable
from baton_worker.kv_transfer.page_content import PageContent
from baton_worker.spec import (
    Attention,
    Decoder,
    Glu,
    Head,
    Norm,
    Rope,
)

_TOKEN = bytes(range(16))
_SOURCE_PAGE, _TARGET_PAGE = 16, 32


def cache(tokens: int, page_size: int) -> KVCache:
    """A cache for `tokens` tokens of a model like Llama 3.2 1B: 32 KiB per token in 16 layers."""
    attention = Attention(32, 8, 64, 1.0, Rope(dim=64, base=1e4, max_position=tokens))
    layers = ((attention, Glu(64)),) * 16
    spec = Decoder(64, 64, layers, Norm(1e-5), Head())
    device = torch.device("cpu")
    pages = -(-tokens // page_size)
    return KVCache(spec, pages, page_size, dtype=torch.bfloat16, device=device)


def serve(run_dir: Path, tokens: int) -> None:
    """Run the source: one exporter per transport, until standard input ends."""
    config, full = Config(run_dir=run_dir), cache(tokens, _SOURCE_PAGE)
    for layer in full.layers:
        layer.normal_()
    grant = Grant(1, 1, _TOKEN, pack(range(full.num_pages), "I"), tokens)
    for name, transport in usable(config).items():
        exporter = Exporter(
            PageContent(full), address(run_dir, name), {name: transport}, host(config)
        )
        exporter.grant(grant)
        exporter.start()
        print(name, flush=True)
    print("ready", flush=True)
    sys.stdin.read()


def address(run_dir: Path, name: str) -> str:
    """Address at which the source serves pages over one transport."""
    return f"ipc://{run_dir}/{name}.sock"


@contextmanager
def source(run_dir: Path, tokens: int) -> Iterator[list[str]]:
    """Start a source process that holds KV, and yield the transports that it can use."""
    command = [sys.executable, "-m", "baton_worker.kv_transfer", "--tokens", str(tokens)]
    with subprocess.Popen(
        [*command, "--serve", str(run_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield [line.strip() for line in iter(process.stdout.readline, "ready\n")]
        process.kill()


def measure(tokens: int, rounds: int) -> dict[str, list[float]]:
    """Bytes per second of each pull, by transport. The first pull, which opens the connection, is
    not counted."""
    empty = cache(tokens, _TARGET_PAGE)
    pages = pack(range(empty.num_pages), "I")
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, source(Path(folder), tokens) as names:
        config = Config(run_dir=Path(folder))
        halves = {
            name: Importer(PageContent(empty), "bench", {name: transport}, host(config))
            for name, transport in usable(config).items()
            if name in names
        }
        for turn in range(rounds + 1):
            for name, importer in halves.items():
                place = address(Path(folder), name)
                importer.start(Pull(1, 1, place, _TOKEN, 0, tokens, pages, 1))
                done = _ended(importer)
                if turn:
                    rates.setdefault(name, []).append(done.num_bytes / done.duration_us * 1e6)
        for importer in halves.values():
            importer.close()
    return rates


def _ended(importer: Importer) -> Pulled:
    while not (pulled := importer.finished()):
        time.sleep(0.0005)
    if pulled[0].reason:
        raise SystemExit(f"a pull failed: {pulled[0].reason}")
    return pulled[0]


def table(rates: dict[str, list[float]], tokens: int) -> Table:
    """Median and range of each transport, and its speed relative to tcp."""
    title = f"{tokens} tokens of 32 KiB, pages of {_SOURCE_PAGE} to pages of {_TARGET_PAGE}"
    result = Table("transport", "GB/s", "slowest .. fastest", "times tcp", title=title)
    base = statistics.median(rates["tcp"])
    for name, measured in rates.items():
        middle = statistics.median(measured)
        spread = f"{min(measured) / 1e9:.2f} .. {max(measured) / 1e9:.2f}"
        result.add_row(name, f"{middle / 1e9:.2f}", spread, f"{middle / base:.2f}")
    return result


def main(argv: Sequence[str]) -> None:
    """Serve, or measure and print."""
    parser = argparse.ArgumentParser(prog="python -m baton_worker.kv_transfer")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens per pull")
    parser.add_argument("--rounds", type=int, default=9, help="pulls over each transport")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    if options.serve:
        serve(options.serve, options.tokens)
    else:
        Console().print(table(measure(options.tokens, options.rounds), options.tokens))


if __name__ == "__main__":
    main(sys.argv[1:])
