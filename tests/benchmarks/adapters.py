"""What adapters cost: rows without one, with one, and with 32 mixed, as ratios of one run.

`python -m tests.benchmarks.adapters [FILE.json]` writes 32 random adapters of the default model, as
large as real ones of it (rank 16 on queries and values), and measures in turn an engine without
adapters and one that serves all of them, 8 streams each. With a file it writes a record of
docs/benchmarks. `all` behind it adapts every projection instead.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

import msgspec
import torch
from rich.console import Console

from baton.checkpoint.hub import resolve
from baton_ops.bench.machine import facts
from baton_ops.bench.record import Cell, Machine, Record, Table
from baton_worker.bench.engine import Bench, Figures, measure, subjects, table
from baton_worker.checkpoint.load import load_model
from baton_worker.kernels.lora import TokenAdapters
from baton_worker.layers.build_context import BuildContext
from baton_worker.lora.targets import LoraTargets
from baton_worker.models.decoder import Model
from tests.support.worker.lora_folders import write_adapter

CPU = torch.device("cpu")

COUNT, RANK, STREAMS, LENGTH, ANSWER, ROUNDS = 32, 16, 8, 128, 64, 7
REAL = ("q_proj", "v_proj")
"""What the adapters that are published for the model adapt."""
GOALS = {"none used": 0.98, f"{COUNT} adapters": 0.80, "one adapter": 0.90}
"""Least share of the tokens/s of an engine without adapters."""


def projections() -> dict[str, tuple[int, int]]:
    """Rows and columns of every projection of the default model."""
    site = BuildContext(CPU, torch.bfloat16, adapters=TokenAdapters(1, 1, CPU))
    loaded = load_model(resolve(Bench()), site)
    assert isinstance(loaded.model, Model)
    shapes = LoraTargets(loaded.model, loaded.spec).shapes
    return {name: shape for name, shape in shapes.items() if name.endswith("_proj")}


def write_all(folder: Path, every: bool) -> Iterator[str]:
    """Write the adapters; yields `--lora-modules`."""
    kept = {n: s for n, s in projections().items() if every or n.endswith(REAL)}
    for number in range(COUNT):
        path = write_adapter(folder / f"a{number}", kept, rank=RANK, seed=number, scale=0.01)
        yield f"a{number}={path}"


def ratios(found: Sequence[Figures]) -> Iterator[tuple[str, float, float]]:
    """Name, and the medians over rounds of prefill and generation against the first subject in the
    same round."""
    first = found[0]
    for figures in found[1:]:
        pairs = ((figures.prefill, first.prefill), (figures.generate, first.generate))
        prefill, generate = (
            statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
            for mine, theirs in pairs
        )
        yield figures.subject, prefill, generate


def record(found: Sequence[Figures], name: str, every: bool) -> Record:
    """What is published of it."""
    rows: list[tuple[Cell, ...]] = [
        (subject, round(prefill, 3), round(generate, 3))
        for subject, prefill, generate in ratios(found)
    ]
    where = "all projections" if every else "queries and values"
    cost = Table(
        "quality",
        f"Tokens/s with adapters of {where}, ratio to an engine without",
        ("rows of a step", "prefill", "generate"),
        tuple(rows),
        command="python -m tests.benchmarks.adapters" + (" FILE all" if every else ""),
        decimals=3,
        notes=(
            f"{STREAMS} streams of SmolLM2-135M in 4 bits, rank {RANK}, {ROUNDS} rounds in turn.",
            "Goals for generation: 0.98 with none used, 0.90 with one, 0.80 with 32.",
        ),
    )
    known = facts()
    machine = Machine(name, known["cpu"], known["cores"], tuple(known["cpu_features"]))
    return Record(date.today(), machine, (cost,))


def main() -> None:
    """Measure, print and write; exits with 1 where a goal is missed."""
    out, every = (Path(sys.argv[1]) if len(sys.argv) > 1 else None), "all" in sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        options = Bench(
            lengths=(LENGTH,),
            generate=ANSWER,
            rows=STREAMS,
            rounds=ROUNDS,
            enable_lora=True,
            max_loras=COUNT,
            max_cpu_loras=COUNT,
            max_lora_rank=RANK,
            lora_modules=",".join(write_all(Path(folder), every)),
        )
        found = measure(subjects(options), options)
    Console().print(table(found, f"{STREAMS} streams"))
    for subject, prefill, generate in ratios(found):
        verdict = "holds" if generate >= GOALS[subject] else "MISSED"
        print(f"{subject}: prefill {prefill:.3f}, generate {generate:.3f}, goal {verdict}")
    if out is not None:
        name = out.stem.removeprefix(f"{date.today()}-")
        data = msgspec.json.format(msgspec.json.encode(record(found, name, every)), indent=2)
        out.write_bytes(data + b"\n")
    sys.exit(any(generate < GOALS[subject] for subject, _, generate in ratios(found)))


if __name__ == "__main__":
    main()
