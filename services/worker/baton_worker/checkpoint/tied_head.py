"""Language heads that a config ties to the embedding, and that a checkpoint holds all the same."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open

from baton.checkpoint.part_folders import in_parts
from baton.logs import logger
from baton_worker.checkpoint.safetensors import has_weights, readable, shards_of
from baton_worker.spec import Decoder
from baton_worker.spec.names import Names

log = logger(__name__)
_ROWS = 1024
"""Rows that are compared at a time."""


def as_saved(spec: Decoder, folder: Path) -> Decoder:
    """The spec with what a checkpoint holds of a tied head, as transformers reads it: a head that
    differs from the embedding is used, and one without an embedding is both.

    Raises:
        ModelError: a file of the folder cannot be read.
    """
    if not spec.head.tied or in_parts(folder) or not has_weights(folder):
        return spec
    found = _places(spec, folder)
    if "head" not in found:
        return spec
    if "embedding" not in found:
        return _for_both(spec)
    if _equal(*found.values()):
        return spec
    log.warning(
        "config.json ties the head to the embedding, but the checkpoint holds another head, which "
        "is used. Write tie_word_embeddings: false there."
    )
    return replace(spec, head=replace(spec.head, tied=False))


def _places(spec: Decoder, folder: Path) -> dict[str, tuple[Path, str]]:
    """The file and the name of the weights of head and embedding, by role."""
    names = Names(spec.tensors.names)
    wanted = {f"{names(role)}.weight": role for role in ("head", "embedding")}
    body = names("embedding").partition(".")[0]
    renames = [(re.compile(pattern), to) for pattern, to in spec.tensors.renames]
    found = dict[str, tuple[Path, str]]()
    for shard in shards_of(folder):
        with readable(shard), safe_open(shard, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                whole = name
                for pattern, to in renames:
                    whole = pattern.sub(to, whole)
                if role := wanted.get(whole) or wanted.get(f"{body}.{whole}"):
                    found[role] = (shard, name)
    return found


def _for_both(spec: Decoder) -> Decoder:
    names = Names(spec.tensors.names)
    rename = (rf"^{re.escape(names('head'))}\.weight$", f"{names('embedding')}.weight")
    tensors = replace(spec.tensors, renames=(*spec.tensors.renames, rename))
    return replace(spec, tensors=tensors)


def _equal(one: tuple[Path, str], other: tuple[Path, str]) -> bool:
    with (
        readable(one[0]),
        safe_open(one[0], framework="pt") as first,
        readable(other[0]),
        safe_open(other[0], framework="pt") as second,
    ):
        ours, theirs = first.get_slice(one[1]), second.get_slice(other[1])
        shape = ours.get_shape()
        return shape == theirs.get_shape() and all(
            torch.equal(ours[at : at + _ROWS].float(), theirs[at : at + _ROWS].float())
            for at in range(0, shape[0], _ROWS)
        )
