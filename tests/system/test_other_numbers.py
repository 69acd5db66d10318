"""A worker goes on with a stream of one whose numbers were others, as on a GPU without --exact,
where sums depend on the rows of a step. The answer is one text: the log so far, and what follows
it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.served_system import Served
from tests.support.system.streams import stream
from tests.support.tiny_models import save_checkpoint, save_tokenizer

PROMPT = [9, 40, 77, 13, 5, 61]
LENGTH = 800
CASES: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 0.8, "seed": 5, "top_p": 0.95}]


def disturb(folder: Path) -> None:
    """Other weights on disk, for the next worker."""
    path = folder / "model.safetensors"
    generator = torch.Generator().manual_seed(1)
    changed = {
        name: weight + 0.05 * weight.std() * torch.randn(weight.shape, generator=generator)
        if weight.ndim > 1
        else weight
        for name, weight in load_file(path).items()
    }
    path.unlink()  # The worker that runs keeps the file that it has mapped.
    save_file(changed, path, metadata={"format": "pt"})


def answer(
    served: Served, name: str, prompt: list[int], length: int, **fields: Any
) -> Iterator[int]:
    """The tokens of a stream, one by one."""
    fields |= {"model": name, "prompt": prompt, "max_tokens": length, "return_token_ids": True}
    for event in stream(served.url, **fields):
        assert "error" not in event, event
        for choice in event["choices"]:
            yield from choice.get("token_ids", [])


@pytest.mark.slow
def test_an_answer_is_continued_from_its_log_by_a_worker_with_other_numbers(tmp_path: Path) -> None:
    changes = {"max_position_embeddings": 1024, "vocab_size": 288}
    save_checkpoint(tmp_path / "model", "LlamaForCausalLM", **changes)
    save_tokenizer(tmp_path / "model")
    flags = ("--no-fork-workers", "--scheduler.max-worker-losses", "9")
    served = Served(tmp_path, tmp_path / "model", *flags).ready()
    try:
        name = served.fleet()["model"]
        before = [list(answer(served, name, PROMPT, LENGTH, **fields)) for fields in CASES]
        disturb(tmp_path / "model")
        streams = [answer(served, name, PROMPT, LENGTH, **fields) for fields in CASES]
        found = [[next(tokens) for _ in range(20)] for tokens in streams]
        os.kill(served.pids()["worker"], signal.SIGKILL)
        for seen, tokens in zip(found, streams, strict=True):
            seen += tokens
        for fields, first, seen in zip(CASES, before, found, strict=True):
            assert len(seen) == LENGTH and seen[:20] == first[:20]
            others = list(answer(served, name, PROMPT, 20, **fields))
            assert others != first[:20], "the numbers of the second worker are the same"
            # Up to where the texts part, the first worker has written it, and then the second.
            parted = next(i for i in range(LENGTH) if seen[i] != first[i])
            assert parted >= 20
            if not fields["temperature"]:  # Another request draws its tokens from the start.
                log, rest = PROMPT + seen[:parted], seen[parted:][:40]
                assert list(answer(served, name, log, len(rest), **fields)) == rest
    finally:
        served.close()
