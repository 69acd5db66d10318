"""Perplexity of SmolLM2 in every scheme that weights can be rounded to, against float32.

`python -m tests.benchmarks.perplexity [FILE.json]` scores the texts of `baton eval nll` in the
worker's own engine code and writes a record of docs/benchmarks. The figures do not depend on the
load of a machine, and by about half a percent on its instructions, which round bfloat16 otherwise.
llama-quantize is the one that `baton peers` builds in .baton/peers.

The model is only published in four bits, which its weights would fit without any loss. So each
group of 32 weights is moved off its grid by noise of up to half a step, in all schemes alike: the
reference is that model in float32.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from gguf import GGMLQuantizationType as Type
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from baton.checkpoint.hub import resolve
from baton.settings import Settings
from baton_ops.bench.peer_systems import PeerSystems
from baton_ops.bench.record import Cell, Machine, Record, Table
from baton_ops.quality.nll import texts
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Quantize
from baton_worker.kernels.kv_codes import CODES, KVCodes
from baton_worker.layers.build_context import BuildContext
from tests.benchmarks.quantized_models import (
    checkpoint,
    gguf_files,
    importance,
    write_importance,
)
from tests.support.gguf_conversion import convert, permuted
from tests.support.worker.page_driver import Driver

CPU, GROUP, LEVELS, ROOM, CALIBRATED = torch.device("cpu"), 32, 15, 1024, 4096
ROUNDED: tuple[Quantize, ...] = ("int8", "int4", "fp8", "mxfp4", "nf4")
"""Of `--quantization`."""
STORED = (Type.Q8_0, Type.Q5_1, Type.Q5_0, Type.Q4_1, Type.Q4_0, Type.MXFP4)
"""GGUF types that the reference package can write."""
MIXED = (
    *("Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K"),
    *("IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_M", "IQ2_XXS", "IQ1_M", "IQ1_S"),
    *("TQ1_0", "TQ2_0"),
)
"""Mixtures of types of llama-quantize."""
METHODS = {
    "GPTQ, 4 bits, groups of 32": "gptq-4",
    "AWQ, 4 bits": "awq",
    "compressed-tensors W8A8": "w8a8",
    "bitsandbytes LLM.int8": "llm-int8",
    "FP8, weights and inputs": "fp8",
    "MXFP8, weights and inputs": "mxfp8",
    "compressed-tensors NVFP4": "nvfp4",
    "bitsandbytes NF4": "nf4",
}
"""Formats of safetensors, each with its case of `quantization_cases`."""
CALIBRATION = Path(__file__).parents[2] / "ARCHITECTURE.md"
PEERS = Path(".baton/peers")
Scores = dict[str, float]


def off_grid(weight: Tensor, generator: torch.Generator) -> Tensor:
    """A weight [N, K] with noise of up to half a step of each group's grid."""
    groups = weight.view(len(weight), -1, GROUP)
    step = (groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)) / LEVELS
    noise = torch.rand(groups.shape, generator=generator) - 0.5
    return (groups + noise * step).view_as(weight)


def write_model(folder: Path, path: Path) -> Any:
    """Write the reference that is made of a GGUF file; returns its tokenizer."""
    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    plain = GgufConfig(dequantize=True)
    model: Any = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, quantization_config=plain
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.copy_(off_grid(weight, generator))
    model.save_pretrained(folder)
    tokens = tokenizer(CALIBRATION.read_text(), return_tensors="pt")["input_ids"][:, :CALIBRATED]
    write_importance(folder / "importance.dat", importance(model, tokens), model.config)
    return tokenizer


def perplexity(
    loaded: LoadedModel, prompts: dict[str, list[list[int]]], codes: KVCodes | None
) -> Scores:
    """By language, over all tokens but the first of each text."""
    found = Scores()
    for language, rows in prompts.items():
        nats = 0.0
        for tokens in rows:
            driver = Driver(loaded, 1, pages_per_row=ROOM, codes=codes)
            logits = driver.step({0: tokens})[0]
            nats += float(F.cross_entropy(logits[:-1], torch.tensor(tokens[1:]), reduction="sum"))
        found[language] = math.exp(nats / sum(len(tokens) - 1 for tokens in rows))
    return found


def subjects(folder: Path, programs: Path) -> Iterator[tuple[str, Path, BuildContext]]:
    """Name, checkpoint and how it is loaded."""
    floats, halves = BuildContext(CPU, torch.float32), BuildContext(CPU, torch.bfloat16)
    yield "float32", folder, floats
    yield "bfloat16", folder, halves
    for scheme in ROUNDED:
        yield (
            f"--quantization {scheme}",
            folder,
            BuildContext(CPU, torch.bfloat16, quantization=scheme),
        )
    for kind in STORED:
        kinds = {".weight": kind}
        yield f"GGUF {kind.name}", convert(folder, "llama", {}, kinds, steps=(permuted,)), halves
    for name, path in gguf_files(folder, MIXED, programs):
        yield name, path, halves
    for number, (name, case) in enumerate(METHODS.items()):
        yield name, checkpoint(folder, folder / str(number), case), halves
    for dtype in ("fp8", "int8"):
        site = BuildContext(CPU, torch.bfloat16, codes=CODES[dtype])
        yield f"bfloat16, --kv-cache-dtype {dtype}", folder, site


def measure(folder: Path) -> Iterator[tuple[str, Scores]]:
    """The perplexity of each subject."""
    source = resolve(Settings())
    programs = PeerSystems(PEERS, source).llama_cpp()
    tokenizer = write_model(folder, source)
    prompts = {
        language: [tokenizer(text)["input_ids"] for text in texts(language)]
        for language in ("en", "zh")
    }
    for name, path, site in subjects(folder, programs):
        yield name, perplexity(load_model(path, site), prompts, site.codes)


def record(found: list[tuple[str, Scores]]) -> Record:
    """What is published of it."""
    reference = found[0][1]
    rows: list[tuple[Cell, ...]] = [
        (name, *(round(100 * (scores[key] / reference[key] - 1), 2) + 0.0 for key in reference))
        for name, scores in found[1:]
    ]
    shown = ", ".join(f"{reference[key]:.2f} ({key})" for key in reference)
    table = Table(
        "quality",
        "Perplexity of SmolLM2-135M against float32, %",
        ("weights", "English", "Chinese"),
        tuple(rows),
        command="python -m tests.benchmarks.perplexity",
        decimals=2,
        notes=(
            f"The texts of `baton eval nll`; perplexity in float32 is {shown}.",
            "Weights are moved off the grid of the published 4-bit file by noise, for all alike.",
            "GGUF types round to the nearest, embeddings included, without an importance matrix.",
            "llama.cpp: files of llama-quantize with the importance that the first "
            f"{CALIBRATED} tokens of ARCHITECTURE.md give. Rows of 576 values are no whole blocks "
            "of 256: but for IQ4_NL the named types hold the down projections alone, a fifth of "
            "the weights, and wider ones the rest.",
            "TQ1_0 and TQ2_0 hold the same three values, for models that are trained in them: "
            "weights that are rounded to three values afterwards give no text.",
            "EXL3 is not in the table: nothing here makes such checkpoints, and rows of 576 values "
            "are no whole blocks of 128, which the format needs.",
            "GPTQ and what follows: projections rounded to the nearest, tables and head as floats; "
            "what calibration saves is not in it.",
            "int4 and mxfp4 of `--quantization` keep all but gate and up in int8; nf4 rounds all.",
        ),
    )
    return Record(date.today(), Machine("any", "any"), (table,))


def main() -> None:
    """Measure, print and write."""
    found = list[tuple[str, Scores]]()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for name, scores in measure(Path(folder)):
            found.append((name, scores))
            print(name, *(f"{key} {value:.4f}" for key, value in scores.items()), flush=True)
    if len(sys.argv) > 1:
        data = msgspec.json.format(msgspec.json.encode(record(found)), indent=2)
        Path(sys.argv[1]).write_bytes(data + b"\n")


if __name__ == "__main__":
    main()
