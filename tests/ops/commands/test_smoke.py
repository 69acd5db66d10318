"""Malformed streams, bad answers, and a good one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from baton.errors import SettingsError, Unavailable
from baton_ops.commands import smoke
from baton_ops.commands.smoke import (
    Answer,
    BadStream,
    Smoke,
    faults,
    follow,
    foreign_share,
    gibberish,
    run,
    script_share,
)

GOOD = "The capital of France is Paris, which lies on the Seine."


def line(event: Any) -> str:
    return f"data: {json.dumps(event)}"


def delta(text: str = "", finish: str | None = None) -> str:
    return line({"choices": [{"delta": {"content": text}, "finish_reason": finish}]})


def stream(text: str, *, done: bool = True) -> list[str]:
    usage = line({"choices": [], "usage": {"completion_tokens": len(text.split())}})
    pieces = [delta(word + " ") for word in text.split()]
    ends = ["data: [DONE]"] if done else []
    return [": ping", "", *pieces, delta(finish="stop"), usage, *ends]


def server(lines: list[str], status: int = 200) -> httpx.MockTransport:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        return httpx.Response(status, text="\n\n".join(lines))

    return httpx.MockTransport(answer)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[httpx.MockTransport]]:
    """Put a transport into the list: it answers what `run` asks."""
    given: list[httpx.MockTransport] = []
    plain = httpx.Client
    monkeypatch.setattr(smoke.httpx, "Client", lambda **how: plain(transport=given[0], **how))
    yield given


def test_a_good_stream_has_no_fault() -> None:
    answer = follow(stream(GOOD), 10)
    assert answer.text.strip() == GOOD and answer.closed and answer.finish == ["stop"]
    answer.first, answer.last = 0.0, 1.0
    assert answer.speed == answer.tokens - 1
    assert faults(answer, "en", 5.0) == []
    assert faults(answer, "en", 50.0) == ["10.0 tokens/s are fewer than 50"]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["<html>"], "a line is no field of an event: '<html>'"),
        (["data: {"], "an event is no JSON"),
        (["data: [DONE]", delta("x")], "something came after"),
        ([line({"error": {"message": "the worker is gone"}})], "the worker is gone"),
    ],
)
def test_what_is_no_stream(lines: list[str], why: str) -> None:
    with pytest.raises(BadStream, match=why):
        follow(lines, 10)


def test_a_stream_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 12.0])
    monkeypatch.setattr(smoke.time, "monotonic", lambda: next(ticks))
    with pytest.raises(BadStream, match="not at its end after 10 s"):
        follow([delta("a"), delta("b")], 10)


def test_faults_of_a_stream_are_all_named() -> None:
    answer = Answer("word " * 5, pieces=1, tokens=5, finish=[])
    answer.first, answer.last = 0.0, 0.1
    assert faults(answer, "en", 1.0) == [
        "the stream ended without [DONE]",
        "it has 0 finish reasons",
        "it came in one piece: something on the way holds streams back",
    ]
    assert "it has no usage" in faults(Answer(GOOD, 9, 0, ["stop"], closed=True), "en", 1.0)


@pytest.mark.row("F22.05")
@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("Par\N{REPLACEMENT CHARACTER}is", "no text"),
        ("Paris\x00", "control or private"),
        ("Paris \ue000", "control or private"),
        ("Paris<|im_end|> is", "special token <|im_end|>"),
        ("</s> Paris", "special token </s>"),
        ("ìì¸ì í¨ë¦¬ Ã©tÃ©", "read as Latin-1"),
        ("the the the the the the the the", "again and again"),
        ("I am " * 8, "again and again"),
        ("on the road " * 9, "again and again"),
        ("a b c d e f g h i j k", "single characters"),
    ],
)
def test_marks_of_gibberish(text: str, mark: str) -> None:
    (found,) = gibberish(text)
    assert mark in found


@pytest.mark.row("F22.05")
@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "very very very good, it is what it is, a b c",
        "Line one.\n\n- a list\n- of\ttwo",
        "3 + 2 = 5, so Tom has 5 apples.",
        "프랑스의 수도는 파리입니다.",
    ],
)
def test_plain_text_has_no_mark_of_gibberish(text: str) -> None:
    assert gibberish(text) == []


def test_the_share_of_a_script() -> None:
    assert script_share(GOOD, "en") == 1.0 and script_share(GOOD, "ko") == 0.0
    assert script_share("파리 Paris", "ko") == pytest.approx(2 / 7)
    assert script_share("123 !", "en") == 0.0


@pytest.mark.row("F22.03")
def test_letters_of_other_scripts_are_counted() -> None:
    assert foreign_share("프랑스의 수도는 파리(Paris, 巴里)입니다.", "ko") == 0.0
    assert foreign_share("Париж", "ko") == 1.0 and foreign_share("angle α", "en") == 0.0
    answer = Answer("The capital is Париж.", 9, 4, ["stop"], closed=True, last=1.0)
    assert faults(answer, "en", 0.0) == ["29% of its letters are of other scripts"]


@pytest.mark.row("F22.03")
def test_what_is_worse_than_a_baseline_fails(
    served: list[httpx.MockTransport], tmp_path: Path
) -> None:
    console, path = Console(file=StringIO(), width=160), tmp_path / "smoke.json"
    both = ["http://one", "--languages", "en,ko", "--least-speed", "0"]
    served.append(server(stream(GOOD)))
    assert not run(Smoke.load([*both, "--write-baseline", str(path)]), console), "Korean fails"
    assert run(Smoke.load([*both, "--baseline", str(path)]), console), "as it did before"
    served[0] = server(stream("Paris Paris 파리 파리 " + GOOD + " </s>"))
    assert not run(Smoke.load([*both, "--baseline", str(path)]), console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("It had no fault: it shows the special token </s>") == 3
    served[0] = server(stream("Seoul 서울 is the 수도 of 대한민국, a city on the river"))
    assert not run(Smoke.load([*both, "--baseline", str(path)]), console)
    with pytest.raises(SettingsError, match=r"is of smoke en,ko:.*not of smoke en:"):
        run(Smoke.load(["http://one", "--baseline", str(path)]), console)


def test_every_question_is_asked_and_judged(served: list[httpx.MockTransport]) -> None:
    served.append(server(stream(GOOD)))
    console = Console(file=StringIO(), width=160)
    assert run(Smoke.load(["http://one", "--least-speed", "0"]), console)
    assert not run(Smoke.load(["http://one", "--languages", "ko", "--least-speed", "0"]), console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("good") == 3 and shown.count("0% of its letters are Hangul") == 3


def test_a_refusal_is_a_verdict(served: list[httpx.MockTransport]) -> None:
    served.append(server(["no"], status=503))
    console = Console(file=StringIO(), width=160)
    assert not run(Smoke.load(["http://one"]), console)
    assert "status 503: no" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_server_without_models(served: list[httpx.MockTransport]) -> None:
    served.append(httpx.MockTransport(lambda request: httpx.Response(200, json={"data": []})))
    with pytest.raises(Unavailable, match="no model yet"):
        run(Smoke.load(["http://one"]), Console(file=StringIO()))
