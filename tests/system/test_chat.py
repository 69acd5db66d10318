"""The default model, real weights, the official client: what a newcomer does first."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import openai
import pytest
from rich.console import Console

from baton_ops.commands.smoke import faults, follow
from baton_ops.quality import nll
from tests.support.served_system import Served

pytestmark = pytest.mark.slow

MODEL = "SmolLM2-135M-Instruct"
CAPITAL = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest.fixture(scope="module")
def served(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    # Equal requests must run in equal shapes here: bfloat16 rounds a prefill of fewer tokens
    # differently. That a cached prefix changes no token is shown in float32, in test_relay.py.
    system = Served(tmp_path_factory.mktemp("chat"), None, "--no-scheduler.enable-prefix-caching")
    try:
        yield system.ready()
    finally:
        system.close()


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.row("T01", "F13.01")
def test_the_banner_says_what_is_served(served: Served) -> None:
    assert MODEL in served.banner and "curl" in served.banner and served.url in served.banner


@pytest.mark.row("F18.01", "T01")
def test_a_streamed_answer_is_sensible_and_equals_the_whole_one(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model=MODEL, messages=CAPITAL, temperature=0, max_tokens=40
    )
    text = whole.choices[0].message.content or ""
    assert "Paris" in text
    stream = client.chat.completions.create(
        model=MODEL,
        messages=CAPITAL,
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    events = list(stream)
    assert "".join(e.choices[0].delta.content or "" for e in events if e.choices) == text
    assert events[-1].usage == whole.usage
    assert [e.choices[0].finish_reason for e in events if e.choices][-1] == "stop"


@pytest.mark.row("F18.02")
def test_a_completion_with_logprobs_and_echo(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="The sky is", temperature=0, max_tokens=4, logprobs=2, echo=True
    )
    choice = answer.choices[0]
    assert choice.text.startswith("The sky is")
    assert choice.logprobs is not None
    assert "".join(choice.logprobs.tokens or ()) == choice.text
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])


def test_stop_strings_never_show_and_end_the_answer(client: openai.OpenAI) -> None:
    plain = client.completions.create(
        model=MODEL, prompt="1 2 3 4 5 6", temperature=0, max_tokens=24
    )
    stop = plain.choices[0].text[5:8]
    cut = client.completions.create(
        model=MODEL, prompt="1 2 3 4 5 6", temperature=0, max_tokens=24, stop=[stop]
    )
    expected = plain.choices[0].text
    assert cut.choices[0].text == expected[: expected.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


@pytest.mark.row("F18.11")
def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_are_the_clients_own_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-x", messages=CAPITAL)
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="x " * 20_000)
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.row("F22.06")
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_the_smoke_test_over_curl(served: Served) -> None:
    """What curl is sent, byte by byte, passes the judgement of `baton smoke`."""
    body = {"model": MODEL, "messages": CAPITAL, "temperature": 0, "max_tokens": 40, "stream": True}
    asked = json.dumps(body | {"stream_options": {"include_usage": True}})
    command = ["curl", "--silent", "--show-error", "--no-buffer", "--max-time", "60", "--include"]
    command += ["--header", "Content-Type: application/json", "--data", asked]
    done = subprocess.run(
        [*command, f"{served.url}/v1/chat/completions"], capture_output=True, text=True, check=True
    )
    head, _, stream = done.stdout.partition("\n\n")
    assert head.startswith("HTTP/1.1 200") and "content-type: text/event-stream" in head
    answer = follow(stream.splitlines(), 60)
    assert "Paris" in answer.text
    # All pieces were read at once here: speed is judged below, as they come.
    assert faults(answer, "en", 0.0) == []


@pytest.mark.row("F22.04")
def test_the_model_predicts_two_languages(served: Served, tmp_path: Path) -> None:
    """With real weights: scores of a language model, the same in decode steps and a prefill."""
    console, path = Console(file=StringIO(), width=160), tmp_path / "nll.json"
    asked = [served.url, "--decoded", "8", "--write-baseline", str(path)]
    assert nll.run(nll.EvalNll.load(asked), console), console.file.getvalue()
    scores = json.loads(path.read_text())["scores"]
    assert 2.0 < scores["en"] < 3.5 and 1.0 < scores["zh"] < 4.0


@pytest.mark.row("F22.06")
def test_the_smoke_test_as_a_command(served: Served) -> None:
    command = [sys.executable, "-m", "baton", "smoke", served.url, "--max-tokens", "32"]
    good = subprocess.run([*command, "--least-speed", "0.1"], capture_output=True, text=True)
    assert good.returncode == 0 and good.stdout.count("good") == 3, good.stdout + good.stderr
    slow = subprocess.run([*command, "--least-speed", "1e9"], capture_output=True, text=True)
    assert slow.returncode == 1 and "fewer" in slow.stdout
