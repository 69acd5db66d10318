"""sentence-transformers files of a checkpoint.

modules.json lists the processing modules, each with its own folder: transformer, pooling, dense
layers, normalisation (https://sbert.net/docs/sentence_transformer/usage).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from baton.checkpoint.json_file import readable_fields
from baton.errors import ModelError
from baton_worker.pooling.recipe import Take
from baton_worker.spec import Dense

_MODES: dict[str, Take] = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_NAMED: dict[str, Take] = {"cls": "first", "mean": "mean", "max": "max", "lasttoken": "last"}
_ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu"}


@dataclass(frozen=True, slots=True)
class SentenceFiles:
    """Parsed files of one folder."""

    folder: Path
    take: Take
    dense: tuple[Dense, ...]
    normalize: bool
    max_length: int
    """0 if no file gives it."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Weights of the dense modules, named as in `dense`."""
        for layer in self.dense:
            module = layer.name.removesuffix(".linear")
            path = self.folder / module / "model.safetensors"
            try:
                with safe_open(path, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118 - the handle is not iterable
                        yield f"{module}.{name}", file.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path} cannot be read: {error}.") from error


def read_sentence_files(folder: Path) -> SentenceFiles | None:
    """Read a folder; None if it has no modules.json.

    Raises:
        ModelError: a module's kind or order is not supported.
    """
    modules = _json(folder / "modules.json") if folder.is_dir() else None
    if not isinstance(modules, list):
        return None
    with readable_fields(f"modules.json of {folder} and the files that it names"):
        return _read(folder, modules)


def _read(folder: Path, modules: list[Any]) -> SentenceFiles:
    settings = _json(folder / "sentence_bert_config.json") or {}
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    places = [_place(folder, str(module.get("path", ""))) for module in modules]
    dense = tuple(_dense(p) for p, k in zip(places, kinds, strict=True) if k == "Dense")
    expected = ["Transformer", "Pooling", *["Dense"] * len(dense)]
    if kinds not in (expected, [*expected, "Normalize"]):
        raise ModelError(
            f"{folder / 'modules.json'} lists {', '.join(kinds)}. Supported are Transformer, "
            "Pooling, any number of Dense, and Normalize at the end, in this order."
        )
    return SentenceFiles(
        folder=folder,
        take=_take(places[1]),
        dense=dense,
        normalize="Normalize" in kinds,
        max_length=int(settings.get("max_seq_length") or 0),
    )


def _place(folder: Path, path: str) -> Path:
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ModelError(f"{folder / 'modules.json'} points outside its folder.")
    return folder / path


def _take(place: Path) -> Take:
    settings = _json(place / "config.json") or {}
    named = settings.get("pooling_mode")
    chosen = [take for key, take in _MODES.items() if settings.get(key)]
    if isinstance(named, str) and named in _NAMED:
        chosen = [_NAMED[named]]
    other = [key for key in settings if key.startswith("pooling_mode_") and settings[key] is True]
    if len(chosen) != 1 or not set(other) <= set(_MODES):
        modes = ", ".join(other) or named or "none"
        raise ModelError(
            f"{place / 'config.json'} asks for the pooling modes {modes}. Supported is exactly one "
            f"of {', '.join(_MODES)}."
        )
    return chosen[0]


def _dense(place: Path) -> Dense:
    settings = _json(place / "config.json") or {}
    activation = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh"))
    kind = activation.rpartition(".")[2]
    if kind not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ModelError(f"{place / 'config.json'} asks for {activation}. Known: {known}.")
    return Dense(
        name=f"{place.name}.linear",
        inputs=int(settings["in_features"]),
        outputs=int(settings["out_features"]),
        bias=settings.get("bias", True),
        activation=_ACTIVATIONS[kind],
    )


def _json(path: Path) -> Any:
    """The content of a file; None if it does not exist."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}.") from error
