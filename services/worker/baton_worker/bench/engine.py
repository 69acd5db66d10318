"""`baton bench engine [MODEL]`: how fast one worker's engine is, without the services around it.

For each length: a prompt of so many tokens, in chunks of the step's budget, then an answer behind
it. All numbers are tokens per second of the engine's own time, a step after the other, for one
sequence or for several at once (`--rows`). Lengths take turns, so that a noisy machine is noisy for
all.

With `--enable-lora --lora-modules ...` the same is measured of an engine without adapters, and of
one with them whose sequences have none, one, or all of them in turn: the ratios are what adapters
cost.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field
from pydantic_settings import CliPositionalArg
from rich.console import Console
from rich.progress import track
from rich.table import Table

from baton.errors import BatonError, SettingsError
from baton.process.lifecycle import fail
from baton.protocol import NewSequence, Plan, Sampling
from baton.protocol.token_columns import pack
from baton.settings import DEFAULT_MODEL
from baton_worker.config import Config
from baton_worker.engine.engine import Engine
from baton_worker.engine.engine_config import EngineConfig


class Bench(Config, prefix="worker"):
    """Measure the engine: prefill and generation at several lengths."""

    model: CliPositionalArg[str] = DEFAULT_MODEL
    """Model to load: a directory, .gguf file, org/name[@revision], or pypi://package/file."""
    lengths: tuple[Annotated[int, Field(ge=2)], ...] = Field(default=(256, 512, 1024), min_length=1)
    """Tokens of a prompt, in turn."""
    generate: int = Field(default=64, ge=1)
    """Tokens of the answer behind each prompt."""
    rows: int = Field(default=1, ge=1, le=1024)
    """Sequences that run at once."""
    rounds: int = Field(default=3, ge=1)
    """How often each length is measured; the median counts."""
    out: Path | None = None
    """File for the figures as JSON."""


class Subject(NamedTuple):
    """The engine that is measured."""

    engine: Engine
    adapters: tuple[bytes, ...] = (b"",)
    """Digests of those that its sequences have, in turn."""
    name: str = ""


@dataclass
class Figures:
    """Tokens per second at one length, one entry per round."""

    length: int
    subject: str = ""
    """Name of the engine, where several are compared."""
    prefill: list[float] = field(default_factory=list)
    generate: list[float] = field(default_factory=list)


class Load:
    """Plans for `rows` sequences of one length, in an engine that holds no others."""

    def __init__(
        self,
        resolved: EngineConfig,
        length: int,
        rows: int,
        generate: int,
        adapters: Sequence[bytes] = (b"",),
    ) -> None:
        if resolved.pooling is not None and not resolved.pooling.generates:
            raise SettingsError(
                "This model makes vectors, not text: measure it with `baton bench`."
            )
        self._resolved, self._length, self._rows = resolved, length, rows
        pages = -(-(length + generate) // resolved.page_size)
        num_pages = rows * pages * len(resolved.groups.windows)
        if length + generate > resolved.max_model_len:
            raise SettingsError(
                f"{length} tokens and {generate} more are over the model's "
                f"{resolved.max_model_len}; give smaller --lengths."
            )
        if num_pages > resolved.num_pages or rows > resolved.max_num_seqs:
            raise SettingsError(
                f"{rows} sequences of {length + generate} tokens do not fit; give smaller "
                "--lengths or --rows, or more --num-gpu-blocks-override."
            )
        self._pages, self._generate, self._adapters = pages, generate, adapters

    def prefill(self, step: int, tokens: bytes) -> Iterator[Plan]:
        """All prompts, one sequence after the other; each ends in its first token."""
        for slot in range(self._rows):
            for start in range(0, self._length, self._resolved.max_num_batched_tokens):
                yield self._chunk(step, slot, start, tokens)
                step += 1

    def _chunk(self, step: int, slot: int, start: int, tokens: bytes) -> Plan:
        count = min(self._resolved.max_num_batched_tokens, self._length - start)
        how = Sampling(self._generate + 1, temperature=0.0)
        new, groups = not start, len(self._resolved.groups.windows)
        first = slot * self._pages * groups
        adapter = self._adapters[slot % len(self._adapters)]
        entry = NewSequence(slot, tokens, self._length, how, adapter=adapter)
        return Plan(
            epoch=0,
            step=step,
            rows=pack([slot], "I"),
            num_computed=pack([start], "I"),
            num_scheduled=pack([count], "I"),
            samples=pack([start + count == self._length], "B"),
            new_sequences=(entry,) if new else (),
            page_rows=pack([slot] * groups, "I") if new else b"",
            page_counts=pack([self._pages] * groups, "I") if new else b"",
            pages=pack(range(first, first + self._pages * groups), "I") if new else b"",
            page_groups=bytes(range(groups)) if new else b"",
        )

    def decode(self, step: int) -> Iterator[Plan]:
        """One token of every sequence per plan."""
        rows = pack(range(self._rows), "I")
        for index in range(self._generate):
            starts = pack([self._length + index] * self._rows, "I")
            counts, samples = pack([1] * self._rows, "I"), pack([1] * self._rows, "B")
            yield Plan(0, step + index, rows, starts, counts, samples)


def subjects(options: Bench) -> list[Subject]:
    """The engines to measure, loaded.

    Raises:
        ModelError, SettingsError: it cannot be loaded.
    """
    if not options.enable_lora:
        return [Subject(Engine.build(options))]
    plain = options.model_copy(update={"enable_lora": False, "lora_modules": ""})
    base, engine = Engine.build(plain), Engine.build(options)
    digests = [info.digest for info in engine.adapters.infos] if engine.adapters else []
    if not digests:
        raise SettingsError("--enable-lora: name what is to be measured with --lora-modules.")
    mixed = tuple(dict.fromkeys(digests))[: engine.max_loras]
    return [
        Subject(base, name="no adapters served"),
        Subject(engine, name="none used"),
        Subject(engine, mixed[:1], "one adapter"),
        Subject(engine, mixed, f"{len(mixed)} adapters"),
    ]


def measure(subjects: Sequence[Subject], options: Bench) -> list[Figures]:
    """Every length of each, `rounds` times, in turn.

    Raises:
        SettingsError: a length does not fit this engine.
    """
    how = (options.rows, options.generate)
    turns = [
        (
            subject,
            Load(subject.engine.resolved, n, *how, subject.adapters),
            Figures(n, subject.name),
        )
        for n in options.lengths
        for subject in subjects
    ]
    chance = np.random.default_rng(0)
    console = Console(stderr=True)
    for turn in track(turns * options.rounds, "measuring", console=console, transient=True):
        (engine, *_), load, figures = turn
        vocabulary = engine.resolved.vocab_size
        tokens = pack(chance.integers(0, vocabulary, figures.length).tolist())
        _round(engine, load, tokens, options, figures)
    return [figures for _, _, figures in turns]


def _round(engine: Engine, load: Load, tokens: bytes, options: Bench, into: Figures) -> None:
    engine.reset()
    plans = list(load.prefill(0, tokens))
    into.prefill.append(into.length * options.rows / _seconds(engine, plans))
    after = list(load.decode(len(plans)))
    into.generate.append(options.generate * options.rows / _seconds(engine, after))
    engine.reset()


def _seconds(engine: Engine, plans: list[Plan]) -> float:
    begin = time.perf_counter()
    for plan in plans:
        engine.submit(plan)
    engine.finish()
    return time.perf_counter() - begin


def table(results: list[Figures], title: str) -> Table:
    """Medians, with what the rounds lie between."""
    heads = ["tokens", "prefill, tokens/s", "generate, tokens/s"]
    compared = any(figures.subject for figures in results)
    grid = Table(*heads, *(["of both", "adapters"] if compared else []), title=title)
    for figures in results:
        cells = [str(figures.length), _shown(figures.prefill), _shown(figures.generate)]
        more = [_ratios(figures, results), figures.subject] if compared else []
        grid.add_row(*cells, *more)
    return grid


def _ratios(figures: Figures, results: list[Figures]) -> str:
    """Both speeds as parts of those of the first subject at the same length."""
    first = next(other for other in results if other.length == figures.length)
    pairs = ((figures.prefill, first.prefill), (figures.generate, first.generate))
    return ", ".join(f"{statistics.median(a) / statistics.median(b):.3f}" for a, b in pairs)


def _shown(values: list[float]) -> str:
    return f"{statistics.median(values):,.1f}  ({min(values):,.1f} to {max(values):,.1f})"


def report(engine: Engine, results: list[Figures], options: Bench) -> str:
    """The figures as JSON, with what is needed to read them later."""
    facts = {
        "model": options.model,
        "engine": str(engine.resolved),
        "rows": options.rows,
        "generate": options.generate,
        "lengths": [
            {"length": f.length, "prefill": f.prefill, "generate": f.generate}
            | ({"adapters": f.subject} if f.subject else {})
            for f in results
        ],
    }
    return json.dumps(facts, indent=1) + "\n"


def run(options: Bench, console: Console) -> list[Figures]:
    """Load, measure, show and write."""
    measured = subjects(options)
    engine, results = measured[0].engine, measure(measured, options)
    sequences = "one sequence" if options.rows == 1 else f"{options.rows} sequences"
    console.print(table(results, f"{engine.resolved.dtype_name}, {sequences}"))
    if options.out is not None:
        options.out.write_text(report(engine, results, options))
        console.print(f"wrote {options.out}", highlight=False)
    return results


def main() -> None:
    """Measure, or say why not."""
    try:
        run(Bench.load(sys.argv[1:]), Console())
    except BatonError as error:
        fail("baton bench engine", error)
    except KeyboardInterrupt:
        sys.exit(130)
