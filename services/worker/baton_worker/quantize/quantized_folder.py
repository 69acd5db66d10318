"""Writes a checkpoint whose weights are rounded as loading would round them.

The layers decide, as they do when they are loaded: they are built on the meta device, and each
returns which of its weights it rounds, and to which kind. Tensors are read in the order of the
checkpoint, one at a time, under the names and in the layout that the layers have for them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from baton.checkpoint.json_file import read_json
from baton.checkpoint.part_folders import in_parts
from baton.errors import ModelError, SettingsError
from baton_worker.checkpoint.empty_model import meta_layers
from baton_worker.checkpoint.formats.checkpoint import Checkpoint
from baton_worker.checkpoint.formats.open_checkpoint import open_checkpoint
from baton_worker.checkpoint.quantized_loading import choose_precision
from baton_worker.checkpoint.task import is_listed, served_task
from baton_worker.checkpoint.unfuse import Unfuse
from baton_worker.checkpoint.unstack import Unstack
from baton_worker.config import Quantize
from baton_worker.kernels.block_kinds import KINDS
from baton_worker.kernels.quantized_weights import quantise
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import Linear
from baton_worker.layers.moe.moe import Experts
from baton_worker.quantization.blocks import SCHEMES, settings, stored
from baton_worker.quantization.methods import method
from baton_worker.quantize.shard_writer import ShardWriter
from baton_worker.spec import Decoder

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json")
_OTHER_WEIGHTS = ("*.pt", "*.pth", "*.gguf", "*.onnx", "*.h5", "*.msgpack")
_MODULES = "modules.json"
"""Lists the folders of a model that makes vectors."""
_LISTED = 3
Kinds: TypeAlias = Mapping[str, str]
"""By name of a weight the kind of `KINDS` to which it is rounded."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The treatment of each tensor of a checkpoint."""

    kinds: Kinds
    wanted: Mapping[str, Tensor]
    """Every target of the layers, on the meta device."""
    spec: Decoder


def write(
    source: Path,
    out: Path,
    scheme: Quantize,
    dtype: torch.dtype | None,
    shards: ShardWriter,
    console: Console,
) -> str:
    """Round the checkpoint in `source` and make the folder `out`, which exists only when it is
    whole. A `dtype` replaces that of floats. Returns what was written, in words.

    Raises:
        SettingsError: `out` exists, or the scheme rounds nothing.
        ModelError: the checkpoint cannot be rounded.
    """
    if scheme == "none":
        raise SettingsError(f"--scheme none rounds nothing. Give one of {', '.join(SCHEMES)}.")
    if out.exists():
        raise SettingsError(f"{out} exists. Name a directory that does not, or remove it first.")
    checkpoint = _opened(source)
    plan = _planned(checkpoint, source, scheme)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as beside:
        folder = Path(beside) / "model"
        folder.mkdir()
        _write_tensors(checkpoint, plan, dtype, folder, shards, _bar(console, source))
        files = shards.end(folder)
        _write_config(source, folder, settings(scheme, plan.kinds), dtype)
        _copy_rest(source, folder)
        folder.rename(out)
    size = f"{decimal(shards.total)} in {files} file{'s' * (files > 1)}"
    return f"{len(plan.kinds)} weights in {scheme}, {size}"


def _opened(source: Path) -> Checkpoint:
    """The checkpoint, if it holds floats of an architecture with a spec. Raises `ModelError`."""
    if source.is_file():
        raise ModelError(
            f"{source.name} is a GGUF file. Only folders of safetensors are rounded: give the "
            "folder from which the file was made."
        )
    if not (source / "config.json").is_file():
        raise ModelError(
            f"{source} has no config.json: only folders in the Hugging Face format are rounded."
        )
    if in_parts(source):
        raise ModelError(
            f"{source} has its language model in a folder of its own: only single folders are "
            "rounded. Serve it with --quantization instead."
        )
    checkpoint = open_checkpoint(source)
    if (named := method(checkpoint.config)) is not None:
        raise ModelError(
            f"{source} is quantised already, with {named}. Give the checkpoint that holds floats."
        )
    if not is_listed(checkpoint.config):
        name = checkpoint.config.architectures[0]
        raise ModelError(
            f"{name} has no spec: it runs in the code of transformers, which rounds nothing."
        )
    return checkpoint


def _planned(checkpoint: Checkpoint, source: Path, scheme: Quantize) -> _Plan:
    task = served_task(checkpoint.config, source)
    layers = meta_layers(task, BuildContext(torch.device("cpu"), torch.float32))
    choose_precision(layers, scheme)
    kinds = {name: kind for layer in layers for name, kind in _rounded(layer)}
    if not kinds:
        raise ModelError(
            f"{source} has no weight that {scheme} rounds: rows of whole groups of 32, of any "
            "linear layer or, for experts_int8, of experts."
        )
    destinations = dict(pair for layer in layers for pair in layer.weight_targets())
    return _Plan(kinds, destinations, task.spec)


def _rounded(layer: Layer) -> Iterator[tuple[str, str]]:
    """The weights that a layer rounds, and to what."""
    kind = layer.quantised_as if isinstance(layer, Linear | Experts) else None
    if kind is None:
        return
    for name, target in layer.weight_targets():
        if name.endswith(".weight") and target.shape[-1] % KINDS[kind].multiple == 0:
            yield name, kind


def _write_tensors(
    checkpoint: Checkpoint,
    plan: _Plan,
    dtype: torch.dtype | None,
    folder: Path,
    shards: ShardWriter,
    bar: Progress,
) -> None:
    """Write every tensor of the checkpoint. Raises `ModelError` if a layer lacks one."""
    missing = set(plan.wanted)
    [task] = bar.task_ids
    with bar:
        for name, tensor, count in _pieces(checkpoint, plan):
            missing.discard(name)
            for part, stored_part in _as_stored(name, tensor, plan.kinds.get(name), dtype):
                shards.add(folder, part, stored_part)
            bar.advance(task, count)
        bar.update(task, completed=bar.tasks[0].total)
    if missing:
        some = ", ".join(sorted(missing)[:_LISTED])
        raise ModelError(f"The checkpoint does not fit its architecture: it lacks {some}.")


def _pieces(checkpoint: Checkpoint, plan: _Plan) -> Iterator[tuple[str, Tensor, int]]:
    """(name, tensor, bytes read) of the tensors of layers, and of all others: these keep their
    names for other readers, such as a draft head."""
    unstack, unfuse = Unstack(plan.spec), Unfuse(plan.spec, plan.wanted)
    for name, tensor in checkpoint.tensors(plan.spec):
        assert isinstance(tensor, Tensor), "the checkpoint holds floats"
        parts = [one for whole in unstack(name, tensor) for one in unfuse(*whole)]
        if not any(part in plan.wanted for part, _ in parts):
            yield name, tensor, tensor.nbytes
            continue
        for part, piece in parts:
            assert isinstance(piece, Tensor), "parts of floats are floats"
            yield part, piece, piece.nbytes


def _as_stored(
    name: str, tensor: Tensor, kind: str | None, dtype: torch.dtype | None
) -> Iterator[tuple[str, Tensor]]:
    if dtype is not None and tensor.is_floating_point():
        tensor = tensor.to(dtype)
    if kind is None:
        yield name, tensor.clone()
    else:
        yield from stored(name, quantise(tensor.contiguous(), kind))


def _bar(console: Console, source: Path) -> Progress:
    """A bar over the bytes of the checkpoint's files."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    total = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    bar.add_task(source.name, total=total)
    return bar


def _write_config(
    source: Path, folder: Path, quantised: dict[str, object], dtype: torch.dtype | None
) -> None:
    config = read_json(source / "config.json") | {"quantization_config": quantised}
    if dtype is not None:
        config["torch_dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def _copy_rest(source: Path, folder: Path) -> None:
    """Everything but weights: the tokenizer, generation settings, processors, pooling folders."""
    unread = shutil.ignore_patterns(*_WEIGHTS, *_OTHER_WEIGHTS, "config.json")
    files = [path.name for path in source.iterdir() if path.is_file()]
    for name in sorted({*files} - unread(str(source), files)):
        shutil.copyfile(source / name, folder / name)
    for module in _modules(source / _MODULES):
        shutil.copytree(source / module, folder / module)


def _modules(path: Path) -> list[str]:
    """The folders that a modules.json names, apart from the model's own."""
    listed = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    named = [str(module.get("path", "")) for module in listed]
    return [name for name in named if name and (path.parent / name).is_dir()]
