"""Engines that embed whole texts or images, and plans for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from baton.protocol import Blob, Media, NewSequence, Plan, Pooling, Result, Sampling
from baton.protocol.token_columns import pack
from baton.protocol.vector_columns import split
from baton_worker.config import Config
from baton_worker.engine.engine import Engine

WHOLE = Pooling(reach="whole")


def engine(folder: Path, **settings: object) -> Engine:
    given = {"device": "cpu", "dtype": "float32", "threads": 1, "max_num_seqs": 4, "block_size": 16}
    return Engine.build(Config(model=str(folder), **given | settings))  # type: ignore[arg-type]


def text(slot: int, tokens: list[int], pooling: Pooling | None = WHOLE) -> NewSequence:
    sampling = Sampling(0 if pooling else 4, temperature=0.0)
    return NewSequence(slot, pack(tokens), len(tokens), sampling, pooling=pooling)


def plan(step: int, *new: NewSequence, **fields: bytes) -> Plan:
    """All of the new ones run to their ends, in pages of their own."""
    slots = [one.slot for one in new]
    lengths = [len(one.tokens) // 4 for one in new]
    given = {
        "rows": pack(slots, "I"),
        "num_computed": pack([0] * len(slots), "I"),
        "num_scheduled": pack(lengths, "I"),
        "samples": bytes(one.pooling is None for one in new),
        "page_rows": pack(slots, "I"),
        "page_counts": pack([8] * len(slots), "I"),
        "pages": pack((8 * slot + i for slot in slots for i in range(8)), "I"),
    }
    return Plan(1, step, new_sequences=new, **given | fields)


def vectors(result: Result) -> dict[int, np.ndarray[tuple[int], np.dtype[np.float32]]]:
    return {slot: np.frombuffer(v, "<f4") for slot, v in split(result.pooled).items()}


def picture(slot: int, seed: int, **fields: Any) -> NewSequence:
    """Sixteen placeholders and the pixels that they stand for."""
    pixels = np.random.default_rng(seed).standard_normal((3, 30, 30)).astype("<f4")
    blob = Blob(**{"dtype": "float32", "shape": pixels.shape, "data": pixels.tobytes()} | fields)
    return structs.replace(text(slot, [0] * 16), media=(Media(b"%32d" % seed, 0, 16, blob),))
