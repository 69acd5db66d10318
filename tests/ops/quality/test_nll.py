"""Scores of a server whose probabilities are known; regressions; servers without scores."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from baton.errors import Unavailable
from baton_ops.quality import nll
from baton_ops.quality.nll import EvalNll, Score, faults, run, subject, texts

pytestmark = pytest.mark.row("F22.04")


class FakeServer:
    """Each character is a token; all have one log-probability, decode steps another."""

    def __init__(self, prefill: float = -2.0, decode: float = -2.0) -> None:
        self.prefill, self.decode, self.scores = prefill, decode, True

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        body = json.loads(request.content)
        prompt = body["prompt"]
        ids = [ord(c) for c in prompt] if isinstance(prompt, str) else prompt
        table = [None, *({str(i): {"logprob": self.prefill}} for i in ids[1:])]
        count = body["max_tokens"]
        choice: dict[str, Any] = {"prompt_token_ids": ids, "token_ids": [7] * count}
        if "prompt_logprobs" in body:
            choice["prompt_logprobs"] = table if self.scores else None
        if "logprobs" in body:
            choice["logprobs"] = {"token_logprobs": [self.decode] * count}
        return httpx.Response(200, text=json.dumps({"choices": [choice]}))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    fake, plain = FakeServer(), httpx.Client
    transport = httpx.MockTransport(fake)
    monkeypatch.setattr(nll.httpx, "Client", lambda **how: plain(transport=transport, **how))
    yield fake


def test_a_worse_score_and_a_wrong_state_fail(server: FakeServer, tmp_path: Path) -> None:
    console, path = Console(file=StringIO(), width=160), tmp_path / "nll.json"
    assert run(EvalNll.load(["--write-baseline", str(path)]), console)
    assert json.loads(path.read_text())["scores"] == {"en": 2.0, "zh": 2.0}
    compare = EvalNll.load(["--baseline", str(path)])
    server.prefill = server.decode = -2.01
    assert run(compare, console), "within the tolerance"
    server.prefill = server.decode = -2.03
    assert not run(compare, console)
    server.prefill, server.decode = -1.5, -1.7
    assert not run(compare, console), "a better score, but decode steps see another state"
    server.prefill = server.decode = math.nan
    assert not run(EvalNll.load(["--write-baseline", str(tmp_path / "no.json")]), console)
    assert not (tmp_path / "no.json").exists()
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2.0300 nats per token, and 2.0000 in the baseline" in shown
    assert "differ by 0.2 nats" in shown


def test_a_server_without_scores_is_refused(server: FakeServer) -> None:
    server.scores = False
    with pytest.raises(Unavailable, match="cannot be scored"):
        run(EvalNll.load([]), Console(file=StringIO()))


def test_texts_and_their_identity() -> None:
    assert len(texts("en")) == len(texts("zh")) == 5
    assert subject(("en",)) != subject(("zh",)) and subject(("en",)).startswith("en:")


def test_figures() -> None:
    score = Score(tokens=10, nats=10 * math.log(2), size=5, drift=0.0)
    assert score.nll == pytest.approx(math.log(2)) and score.bits_per_byte == pytest.approx(2.0)
    worst = Score(1, math.nan, 1, math.inf)
    assert len(list(faults({"en": worst}, EvalNll.load([]), None))) == 2
