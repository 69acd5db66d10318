"""Pictures of texts, for a model with real weights that sees their very tokens: every answer is
the one to the text."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tokenizers import Tokenizer

from tests.fakes.whole_system import Whole, whole
from tests.support import transparent_llava
from tests.support.conformance import SPECS, failures
from tests.support.served_system import PATIENCE, Served, until
from tests.support.tiny_dual_encoders import data_url

pytestmark = pytest.mark.slow
FRANCE = "So, what is the capital of France?"
ROME = "So, who were the kings of Rome?"
GERMANY = " And what is the capital city of Germany?"
TALE = 40 * "Once upon a time."
"""Long enough to be prefilled while a picture behind it is encoded."""
COUNT = 24


@dataclass(frozen=True)
class Glass:
    """A saved transparent model."""

    folder: Path
    embeddings: Any

    def seen(self, text: str) -> dict[str, Any]:
        """A picture of a text as a content part."""
        file = str(self.folder / "tokenizer.json")
        ids = Tokenizer.from_file(file).encode(text, add_special_tokens=False).ids
        url = data_url(transparent_llava.picture(self.embeddings, ids))
        return {"type": "image_url", "image_url": {"url": url}}


@pytest.fixture(scope="module")
def glass(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Glass:
    folder = tmp_path_factory.mktemp("glass") / "glass"
    return Glass(folder, transparent_llava.save(folder, smollm2))


def terse(glass: Glass, folder: Path) -> Path:
    """The same model, for which an answer is greedy and ends with a sentence: a full stop is an end
    token."""
    found = shutil.copytree(glass.folder, folder / "glass", copy_function=os.link)
    tokenizer = Tokenizer.from_file(str(found / "tokenizer.json"))
    ends = [tokenizer.token_to_id(piece) for piece in ("<|im_end|>", ".", ",", "\u010a")]
    (found / "generation_config.json").write_text(
        json.dumps({"eos_token_id": ends, "temperature": 0.0})
    )
    return found


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def body(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": list(parts)}]
    asked = {"model": "glass", "messages": messages, "temperature": 0, "max_tokens": COUNT}
    return asked | {"return_token_ids": True, "logprobs": True} | fields


class Answer(NamedTuple):
    tokens: list[int]
    logprobs: list[float]
    text: str
    cached: int
    """Tokens of the prompt."""

    def equals(self, other: Answer) -> bool:
        return (self.tokens, self.logprobs) == (other.tokens, other.logprobs)


def ask(here: Whole, *parts: dict[str, Any]) -> Answer:
    answer = here.post("/v1/chat/completions", body(*parts))
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return Answer(choice["token_ids"], logprobs, choice["message"]["content"], cached)


@pytest.mark.row("F01.01")
def test_a_picture_of_a_text_is_answered_as_the_text(glass: Glass) -> None:
    """One, and two in a message, whose order counts, cut by steps of 16 tokens; again, without the
    encoder and from the prefix cache."""
    france, germany = glass.seen(FRANCE), glass.seen(GERMANY)
    settings = {"block_size": 4, "max_num_batched_tokens": 16, "max_num_seqs": 2}
    with whole(glass.folder, worker=settings) as here:
        encoder = here.worker.encoder
        assert encoder is not None
        read, seen = ask(here, said(FRANCE)), ask(here, france)
        assert "Paris" in read.text
        assert seen.equals(read) and encoder.num_encoded == 1
        again = ask(here, france)
        assert again.equals(read) and encoder.num_encoded == 1 and again.cached > seen.cached
        both = ask(here, said(FRANCE + GERMANY))
        assert "Paris" in both.text and "Berlin" in both.text
        assert ask(here, france, germany).equals(both) and encoder.num_encoded == 2
        swapped = ask(here, said(GERMANY + FRANCE))
        assert ask(here, germany, france).equals(swapped) and not swapped.equals(both)
        assert encoder.num_encoded == 2


def stream(served: Served, *parts: dict[str, Any]) -> Iterator[list[int]]:
    """The tokens of an answer as they come."""
    url = f"{served.url}/v1/chat/completions"
    asked = body(*parts, stream=True, ignore_eos=True, max_tokens=64)
    with httpx.stream("POST", url, json=asked, timeout=PATIENCE) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                for choice in event["choices"]:
                    yield choice.get("token_ids") or []


@pytest.mark.filterwarnings("ignore:jsonschema.RefResolver")  # of the conformance suite
def test_an_answer_to_pictures_outlives_its_worker(glass: Glass, run_dir: Path) -> None:
    """Its tokens are those of the answer to the text, through five real processes; and a
    conformance suite's pictures are answered in each API."""
    served = Served(run_dir, terse(glass, run_dir), "--worker.dtype", "float32")
    try:
        served.ready()
        read = [token for part in stream(served, said(FRANCE + GERMANY)) for token in part]
        events = stream(served, glass.seen(FRANCE), glass.seen(GERMANY))
        seen = [token for _ in range(5) for token in next(events)]
        os.kill(served.pids()["worker"], signal.SIGKILL)
        seen += [token for part in events for token in part]
        assert len(seen) == 64 and seen == read
        for kind in SPECS:
            assert failures(served.url, "glass", kind, images=True) == []
    finally:
        served.close()


@pytest.mark.row("F20.02")
def test_an_encode_worker_is_never_missed(glass: Glass, run_dir: Path) -> None:
    """Pictures are encoded apart, prefilled and decoded on three workers; the tokens are those of
    the text. The encode worker is killed while a request waits for it, begun or not: the answers
    are the same."""
    flags = ("--encode", "1", "--prefill", "1", "--decode", "1", "--worker.dtype", "float32")
    flags += ("--scheduler.local-prefill-max-tokens", "0")
    served = Served(run_dir, glass.folder, *flags)
    try:
        served.ready()
        until(lambda: roles(served).keys() == {"encode", "prefill", "decode"}, "all have joined")
        read = tokens(served, said(FRANCE + GERMANY))
        assert tokens(served, glass.seen(FRANCE), glass.seen(GERMANY)) == read
        encoded = {"media_encoded": 2, "media_encoded_locally": 0}
        served.reports(finished=2, media_pulled=2, **encoded)
        until(lambda: served.fleet()["handoffs"] > 0, "a sequence is handed over")
        assert tokens(served, glass.seen(GERMANY), glass.seen(FRANCE)) != read
        served.reports(finished=3, **encoded)
        encoder = served.pids()["encode-1"]
        os.kill(encoder, signal.SIGSTOP)
        with ThreadPoolExecutor() as clients:
            seen = clients.submit(tokens, served, glass.seen(ROME))
            begun = clients.submit(tokens, served, said(TALE), glass.seen(ROME))
            until(lambda: has_an_image(served), "the encode worker is waited for")
            until(lambda: roles(served)["prefill"]["running"] == 1, "the tale is prefilled")
            os.kill(encoder, signal.SIGKILL)
            assert seen.result() == tokens(served, said(ROME))
            assert begun.result() == tokens(served, said(TALE + ROME))
    finally:
        served.close()


def tokens(served: Served, *parts: dict[str, Any]) -> list[int]:
    """All tokens of an answer."""
    return [token for part in stream(served, *parts) for token in part]


def roles(served: Served) -> dict[str, Any]:
    """The workers by their roles."""
    return {worker["role"]: worker for worker in served.fleet()["workers"]}


def has_an_image(served: Served) -> bool:
    """Whether the encode worker has one, or was given up with it: it is silent."""
    encoder = roles(served).get("encode")
    return encoder is None or encoder["running"] == 1
