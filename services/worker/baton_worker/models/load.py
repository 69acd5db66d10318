"""Checkpoint to model: stream every tensor straight into the parameter that wants it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.pages import Codes
from baton_worker.kernels.quantized import Blocks
from baton_worker.layers.layer import Layer, Site
from baton_worker.models import fallback
from baton_worker.models.build import build
from baton_worker.models.config import fp8_block, has_kv_scales, read_config, read_eos_token_ids
from baton_worker.models.decoder import Model
from baton_worker.models.encoder import EncoderModel, build_encoder
from baton_worker.models.fallback import Fallback
from baton_worker.models.fp8 import Widen
from baton_worker.models.fused import Unfuse
from baton_worker.models.names import Names, is_recomputed
from baton_worker.models.packed import Quantize, Taking, choose_precision
from baton_worker.models.ranked import RankedFolder
from baton_worker.models.resolve import unsupported
from baton_worker.models.serving import Serving, is_listed, serving
from baton_worker.models.spec import Decoder, Encoder, Ffn, Forked, Moe
from baton_worker.models.stacked import Unstack
from baton_worker.pooling.pooler import Pooler
from baton_worker.pooling.recipe import Recipe
from baton_worker.pooling.recipes import Task

_log = logging.getLogger(__name__)
_LISTED = 8
"""Tensor names that an error spells out before it counts the rest."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, and what the rest of the worker needs to know about it."""

    model: Model | EncoderModel | Fallback
    spec: Decoder
    config: SimpleNamespace
    max_length: int
    """Tokens, prompt and completion together, that the checkpoint declares."""
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    weight_bytes: int = 0
    """Bytes of all weights in the precision they are held in; a tied head counts once."""
    recipe: Recipe | None = None
    """What `model.pooler` makes of hidden states; None when there are only tokens to sample."""
    generates: bool = True


class Checkpoint(Protocol):
    """A container of weights in any file format."""

    config: SimpleNamespace
    eos_token_ids: tuple[int, ...]

    def tensors(self, spec: Decoder) -> Iterator[tuple[str, Tensor | Blocks]]:
        """Every tensor once, under its Hugging Face name; blocks where it is stored in them."""
        ...


def load_model(
    path: Path,
    *,
    device: torch.device,
    dtype: torch.dtype,
    served_length: int | None = None,
    task: Task = "auto",
    pooling: str = "auto",
    router: str = "top_k",
    quantize: Quantize = "none",
    codes: Codes | None = None,
) -> LoadedModel:
    """Load a checkpoint folder (config.json and safetensors) or a GGUF file.

    `served_length` is the longest sequence that will be served, see `resolve`; `task` and
    `pooling` are those of `serving`; `router` is a row of `layers.routers.ROUTERS`, for all
    experts; `quantize` is that of `choose_precision`; `codes` are those of the pages,
    with the scales of the checkpoint if it has any for such codes.

    Raises:
        ModelError: the path holds neither, the architecture is unknown, or the tensors are not
            exactly those that the architecture wants.
    """
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    if not is_listed(config):
        if task == "embed" or quantize != "none":
            raise unsupported(config.architectures[0], "only a spec can be embedded or quantised")
        if codes is not None:
            raise unsupported(config.architectures[0], f"only a spec can have {codes} pages")
        return _by_transformers(path, checkpoint, device, dtype)
    what = serving(config, path, task, pooling, served_length)
    what = replace(what, spec=routed(what.spec, router))
    spec = what.spec
    calibrated = has_kv_scales(config)
    scaled = calibrated and codes is not None and codes.dtype is torch.float8_e4m3fn
    model = _built(what, device, dtype, codes, scaled)
    extra = what.files.tensors() if what.files and what.recipe else iter(())
    stored = checkpoint.tensors(spec)
    if calibrated and not scaled:
        stored = (pair for pair in stored if not pair[0].endswith((".k_scale", ".v_scale")))
    fill(model, chain(stored, extra), spec, quantize)
    return LoadedModel(
        model=model.eval(),
        spec=spec,
        config=config,
        max_length=what.max_length,
        vocab_size=spec.vocab,
        eos_token_ids=checkpoint.eos_token_ids,
        weight_bytes=_held_bytes(model),
        recipe=what.recipe,
        generates=what.generates,
    )


def _by_transformers(
    path: Path, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
) -> LoadedModel:
    """An architecture on no list, in the code of transformers; see `fallback`."""
    config = checkpoint.config
    if why := fallback.refuses(config):
        raise unsupported(config.architectures[0], why)
    model, spec = fallback.load_fallback(path, config, device=device, dtype=dtype)
    _log.warning(
        "%s has no spec here: it runs in the slower code of transformers", config.architectures[0]
    )
    return LoadedModel(
        model=model.eval(),
        spec=spec,
        config=config,
        max_length=spec.max_length,
        vocab_size=spec.vocab,
        eos_token_ids=checkpoint.eos_token_ids,
        weight_bytes=_held_bytes(model),
    )


def _held_bytes(model: Model | EncoderModel | Fallback) -> int:
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    return parameters + sum(layer.weight_bytes for layer in model.layers())


def routed(spec: Decoder, kind: str) -> Decoder:
    """The spec with all its routers of this kind; `top_k` is what every checkpoint asks for."""
    if kind == "top_k":
        return spec
    layers = tuple((mixer, _rerouted(ffn, kind)) for mixer, ffn in spec.layers)
    return replace(spec, layers=layers)


def _rerouted(ffn: Ffn | None, kind: str) -> Ffn | None:
    if isinstance(ffn, Moe):
        return replace(ffn, router=replace(ffn.router, kind=kind))
    if isinstance(ffn, Forked):
        branch = replace(ffn.branch, router=replace(ffn.branch.router, kind=kind))
        return replace(ffn, branch=branch)
    return ffn


def _built(
    what: Serving,
    device: torch.device,
    dtype: torch.dtype,
    codes: Codes | None,
    scaled: bool,
) -> Model | EncoderModel:
    """The body, with the head that makes its states an answer beside text."""
    model: Model | EncoderModel
    if isinstance(what.spec, Encoder):
        model = build_encoder(what.spec, device=device, dtype=dtype)
    else:
        model = build(what.spec, device=device, dtype=dtype, codes=codes, scaled=scaled)
    if what.recipe is not None:
        model.pooler = Pooler(what.recipe, Site(device, dtype, lambda role: role))
    return model


def open_checkpoint(path: Path) -> Checkpoint:
    """The reader of this path's format; no weight is read yet."""
    if path.is_dir():
        return RankedFolder(path) if RankedFolder.fits(path) else SafetensorsFolder(path)
    if path.is_file() and path.suffix == ".gguf":
        from baton_worker.models.gguf import GgufFile

        return GgufFile(path)
    if not path.exists():
        raise ModelError(f"{path} does not exist.")
    raise ModelError(
        f"{path.name} is not a checkpoint that Baton reads. "
        "Give a folder with config.json and .safetensors files, or a .gguf file."
    )


class SafetensorsFolder:
    """A Hugging Face folder: `model.safetensors`, or the shards that its index lists."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.config = read_config(folder)
        self.eos_token_ids = read_eos_token_ids(folder, self.config)

    def tensors(self, spec: Decoder) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of every shard, memory-mapped until it is copied or widened."""
        if (block := fp8_block(self.config)) is None:
            yield from self._stored()
            return
        widen = Widen(block)
        for name, tensor in self._stored():
            yield from widen(name, tensor)

    def _stored(self) -> Iterator[tuple[str, Tensor]]:
        for shard in self._shards():
            try:
                with safe_open(shard, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118 - the handle is not iterable
                        yield name, file.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{shard} cannot be read: {error}.") from error

    def _shards(self) -> list[Path]:
        index = self._folder / "model.safetensors.index.json"
        if index.is_file():
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            if any(Path(name).name != name for name in names):
                raise ModelError(f"{index} points outside its folder.")
            return [self._folder / name for name in sorted(names)]
        single = self._folder / "model.safetensors"
        if single.is_file():
            return [single]
        raise ModelError(
            f"{self._folder} holds no model.safetensors and no model.safetensors.index.json. "
            "Baton reads safetensors and GGUF only; convert other weights first."
        )


def fill(
    model: Model | EncoderModel,
    tensors: Iterator[tuple[str, Tensor | Blocks]],
    spec: Decoder,
    quantize: Quantize = "none",
) -> None:
    """Copy each tensor to its destination, then let every layer prepare its weights.

    Raises:
        ModelError: a tensor is missing, left over, or of the wrong shape.
    """
    layers = model.layers()
    # A function of its own: nothing may hold on to a weight when its layer replaces it.
    _copy_all(layers, tensors, spec)
    choose_precision(layers, quantize)
    for layer in layers:
        layer.finish()


def _copy_all(
    layers: list[Layer], tensors: Iterator[tuple[str, Tensor | Blocks]], spec: Decoder
) -> None:
    wanted = dict(pair for layer in layers for pair in layer.destinations())
    missing, leftover = set(wanted), list[str]()
    unstack, unfuse = Unstack(spec), Unfuse(spec, wanted)
    taking = Taking(layers)
    whole = (part for stored in taking(tensors) for part in unstack(*stored))
    for name, tensor in (part for stored in whole for part in unfuse(*stored)):
        if name in wanted:
            _copy(name, tensor, wanted)
            missing.discard(name)
        elif not _may_stay_unread(name, spec):
            leftover.append(name)
    missing -= taking.taken
    if missing or leftover:
        raise ModelError(
            "The checkpoint does not fit its architecture: "
            f"{_listed('missing', missing)}; {_listed('not used', leftover)}."
        )


def _may_stay_unread(name: str, spec: Decoder) -> bool:
    tied_head = spec.head.tied and name == f"{Names(spec.names)('head')}.weight"
    return is_recomputed(name) or tied_head or name.startswith(spec.unused)


def _copy(name: str, tensor: Tensor, wanted: Mapping[str, Tensor]) -> None:
    if tensor.shape != wanted[name].shape:
        raise ModelError(
            f"Tensor {name} is {list(tensor.shape)} in the checkpoint, "
            f"but the config wants {list(wanted[name].shape)}."
        )
    if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
        raise ModelError(f"Tensor {name} is {tensor.dtype}; quantised safetensors cannot be read.")
    wanted[name].copy_(tensor)


def _listed(what: str, names: set[str] | list[str]) -> str:
    some = sorted(names)[:_LISTED]
    rest = f" and {len(names) - len(some)} more" if len(names) > len(some) else ""
    return f"{what}: {', '.join(some) or 'none'}{rest}"
