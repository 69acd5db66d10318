"""`baton eval nll URL`: measures how well a served model predicts English and Chinese texts.

Each text is sent as a prompt to /v1/completions with `prompt_logprobs`, so its tokens run through
the server's chunked prefill, paged KV and recurrent states. Then the model continues the beginning
of the text, and its output is scored again as a prompt: if a decode step and a prefill give one
token different probabilities, a state or a page is wrong. The exit code is 1 if the negative
log-likelihood is worse than a stored baseline, or if decode and prefill disagree.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import httpx
from pydantic import Field
from pydantic_settings import CliPositionalArg
from rich.console import Console
from rich.table import Table

from baton.errors import BatonError, Unavailable
from baton.process.lifecycle import fail
from baton.settings import Settings
from baton_ops.quality.baseline import Baseline
from baton_ops.server_url import ServerUrl

Language = Literal["en", "zh"]
_LANGUAGES: tuple[Language, ...] = ("en", "zh")


class EvalNll(Settings, prefix="eval_nll"):
    """Score English and Chinese texts with a server's own API."""

    url: CliPositionalArg[ServerUrl] = "http://127.0.0.1:8000"
    """Where the OpenAI-compatible server listens."""
    key: str = ""
    """API key, if the server wants one."""
    languages: tuple[Language, ...] = Field(default=_LANGUAGES, min_length=1)
    """Languages of the texts: en, zh."""
    baseline: Path | None = None
    """JSON file of an earlier run; worse scores are a failure."""
    write_baseline: Path | None = None
    """Write the scores of this run to this JSON file."""
    tolerance: float = Field(default=0.02, ge=0)
    """Tolerance of a score against the baseline in nats per token."""
    decoded: int = Field(default=24, ge=1)
    """Tokens that the model generates after the beginning of each text."""
    drift: float = Field(default=0.1, ge=0)
    """Tolerance between decode steps and a prefill for the same token in nats."""
    seconds: float = Field(default=120.0, gt=0)
    """How long one request may take."""


def texts(language: Language) -> list[str]:
    """The paragraphs of a language."""
    text = files("baton_ops.quality").joinpath(f"texts/{language}.txt").read_text("utf-8")
    return [paragraph.strip() for paragraph in text.split("\n\n") if paragraph.strip()]


def subject(languages: Sequence[Language]) -> str:
    """Identity of the texts of these languages."""
    text = "\0".join(paragraph for language in languages for paragraph in texts(language))
    return f"{','.join(languages)}:{sha256(text.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Score:
    """The texts of one language."""

    tokens: int
    """Tokens that have a probability: all but the first of each text."""
    nats: float
    """Sum of their negative log-likelihoods."""
    size: int
    """Bytes of the texts."""
    drift: float
    """Largest difference between a decode step and a prefill, in nats."""

    @property
    def nll(self) -> float:
        """Nats per token."""
        return self.nats / max(1, self.tokens)

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte, comparable between models with different vocabularies."""
        return self.nats / math.log(2) / max(1, self.size)


class Scorer:
    """Requests to one model. Raises `Unavailable` for an invalid response."""

    def __init__(self, client: httpx.Client, decoded: int) -> None:
        self._client, self._decoded = client, decoded
        self.model = self._first_model()

    def _first_model(self) -> str:
        models = self._post("GET", "/v1/models").get("data")
        if not models:
            raise Unavailable("The server has no model yet: try again in a moment.")
        return str(models[0]["id"])

    def score(self, language: Language) -> Score:
        """Score the texts of a language."""
        paragraphs = texts(language)
        nats = [value for text in paragraphs for value in self._surprisals(text)[1]]
        drift = max(self._drift(text[: len(text) // 2]) for text in paragraphs)
        return Score(len(nats), sum(nats), sum(len(text.encode()) for text in paragraphs), drift)

    def _surprisals(self, prompt: str | list[int]) -> tuple[list[int], list[float]]:
        """The ids of a prompt, and the negative log-likelihoods of all but the first."""
        choice = self._completed(prompt, 1, prompt_logprobs=0)
        ids, table = choice["prompt_token_ids"], choice["prompt_logprobs"]
        if not table or len(table) != len(ids):
            raise Unavailable("The server gives no prompt_logprobs: it cannot be scored.")
        entries = zip(ids[1:], table[1:], strict=True)
        return ids, [-float(entry[str(token)]["logprob"]) for token, entry in entries]

    def _drift(self, beginning: str) -> float:
        choice = self._completed(beginning, self._decoded, logprobs=0)
        prompt, written = choice["prompt_token_ids"], choice["token_ids"]
        decoded = choice["logprobs"]["token_logprobs"]
        _, again = self._surprisals([*prompt, *written])
        pairs = zip(decoded, again[len(again) - len(written) :], strict=True)
        # NaN counts as a difference: `max` alone would ignore it.
        gaps = [abs(logprob + nats) for logprob, nats in pairs]
        return max((math.inf if math.isnan(gap) else gap for gap in gaps), default=math.inf)

    def _completed(
        self, prompt: str | list[int], max_tokens: int, **options: int
    ) -> dict[str, Any]:
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **options,
        }
        choice: dict[str, Any] = self._post("POST", "/v1/completions", json=body)["choices"][0]
        return choice

    def _post(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        at = self._client.base_url.join(path)
        try:
            response = self._client.request(method, path, **body)
            answer: dict[str, Any] = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise Unavailable(f"{at}: {type(error).__name__}: {error}") from error
        if response.status_code != 200:
            raise Unavailable(f"{at}: status {response.status_code}: {response.text[:200]}")
        return answer


def faults(
    scores: dict[str, Score], options: EvalNll, stored: Baseline | None
) -> Iterator[tuple[str, str]]:
    """Language and sentence of each failure."""
    for language, score in scores.items():
        if not math.isfinite(score.nats):
            yield language, "a token has no finite probability"
        if score.drift > options.drift:
            yield language, f"decode steps and prefill differ by {score.drift:.3g} nats"
        best = None if stored is None else stored.scores.get(language)
        if best is not None and not score.nll <= best + options.tolerance:
            yield language, f"{score.nll:.4f} nats per token, and {best:.4f} in the baseline"


def table(scores: dict[str, Score], wrong: dict[str, str]) -> Table:
    """One line per language."""
    grid = Table("language", "tokens", "nats/token", "bits/byte", "drift", "verdict")
    for language, score in scores.items():
        numbers = f"{score.nll:.4f}", f"{score.bits_per_byte:.4f}", f"{score.drift:.2g}"
        verdict = f"[red]{wrong[language]}[/]" if language in wrong else "[green]good[/]"
        grid.add_row(language, str(score.tokens), *numbers, verdict)
    return grid


def run(options: EvalNll, console: Console) -> bool:
    """Score the texts, print a table, return whether nothing got worse."""
    about, stored = subject(options.languages), None
    if options.baseline is not None:
        stored = Baseline.read(options.baseline, "nll", about)
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    with httpx.Client(base_url=options.url, headers=headers, timeout=options.seconds) as client:
        scorer = Scorer(client, options.decoded)
        scores: dict[str, Score] = {name: scorer.score(name) for name in options.languages}
    failures = list(faults(scores, options, stored))
    console.print(table(scores, {language: sentence for language, sentence in failures}))
    if options.write_baseline is not None and failures:
        console.print(f"{options.write_baseline} is not written: these scores have faults.")
    elif options.write_baseline is not None:
        numbers = {language: round(score.nll, 6) for language, score in scores.items()}
        Baseline("nll", about, scorer.model, numbers).write(options.write_baseline)
    return not failures


def main() -> None:
    """Run the command; exits with 1 when a score is worse."""
    try:
        good = run(EvalNll.load(sys.argv[1:]), Console())
    except BatonError as error:
        fail("baton eval nll", error)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
