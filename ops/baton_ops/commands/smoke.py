"""`baton smoke URL`: checks that a server's answers are plausible.

Asks questions over the OpenAI API and checks each stream: events, script, characters, signs of
gibberish, speed. Use it after a deployment, against Baton or any other server; the exit code is 1
when an answer fails, or with a baseline when one fails that did not fail in it, or has fewer
letters of its language. It does not check that an answer is correct.
"""

from __future__ import annotations

import json
import re
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from textwrap import shorten
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
from baton_ops.server_url import ServerUrl, unavailable

Language = Literal["en", "ko"]
QUESTIONS: dict[Language, tuple[str, ...]] = {
    "en": (
        "What is the capital of France? Answer in one sentence.",
        "Explain in two sentences why the sky is blue.",
        "Tom has three apples and buys two more. How many has he? Explain briefly.",
    ),
    "ko": (
        "프랑스의 수도는 어디인가요? 한 문장으로 답하세요.",
        "하늘이 왜 파란지 두 문장으로 설명하세요.",
        "사과 세 개가 있고 두 개를 더 샀습니다. 모두 몇 개인가요? 짧게 설명하세요.",
    ),
}
_SCRIPTS: dict[Language, str] = {"en": "LATIN", "ko": "HANGUL"}
_ALSO: dict[Language, tuple[str, ...]] = {"en": ("GREEK",), "ko": ("LATIN", "CJK", "GREEK")}
"""Other scripts that an answer may use: names, Hanja, symbols of formulas."""
_MOST_FOREIGN = 0.02
"""Fraction of an answer's letters that may be in none of these scripts."""
_MISREAD = re.compile("[\u00c2-\u00f4][\u0080-\u00bf]")
"""A character of UTF-8 that was decoded as Latin-1."""
_SHARE_DROP = 0.2
"""Loss of letters of the language against a baseline that is a regression."""
_LEAST_SHARE = 0.6
"""Fraction of an answer's letters that must be in the script of its question."""
_RUN = 8
"""Repetitions of a word or short phrase in a row that count as a loop."""


class Smoke(Settings, prefix="smoke"):
    """Ask a server some questions and check the streams."""

    url: CliPositionalArg[ServerUrl] = "http://127.0.0.1:8000"
    """Where the OpenAI-compatible server listens."""
    key: str = ""
    """API key, if the server wants one."""
    languages: tuple[Language, ...] = Field(default=("en",), min_length=1)
    """Languages of the questions: en, ko."""
    max_tokens: int = Field(default=64, ge=1)
    """Longest answer."""
    seconds: float = Field(default=60.0, gt=0)
    """How long one answer may take."""
    least_speed: float = Field(default=1.0, ge=0)
    """Tokens per second after the first that an answer must reach."""
    baseline: Path | None = None
    """JSON file of an earlier run: only answers that passed there must pass."""
    write_baseline: Path | None = None
    """Write the verdicts of this run to this JSON file."""


@dataclass
class Answer:
    """One received stream."""

    text: str = ""
    pieces: int = 0
    tokens: int = 0
    finish: list[str] = field(default_factory=list)
    closed: bool = False
    """True if `[DONE]` was its last event."""
    first: float = 0.0
    """Time of the first piece of text."""
    last: float = 0.0

    @property
    def speed(self) -> float:
        """Tokens per second after the first token; 0 with fewer than two."""
        seconds = self.last - self.first
        return (self.tokens - 1) / seconds if self.tokens > 1 and seconds > 0 else 0.0


class BadStream(Exception):
    """The stream is malformed; the message is one sentence."""


def events(lines: Iterable[str]) -> Iterator[dict[str, Any] | None]:
    """Yield the events of a stream; None for `[DONE]`. Raises `BadStream`."""
    for line in lines:
        if not line or line.startswith((":", "id:", "event:", "retry:")):
            continue
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:"):
            raise BadStream(f"a line is no field of an event: {line[:40]!r}")
        try:
            yield None if data == "[DONE]" else json.loads(data)
        except ValueError as error:
            raise BadStream(f"an event is no JSON: {data[:40]!r}") from error


def follow(lines: Iterable[str], seconds: float) -> Answer:
    """Read a stream of chat completions to its end. Raises `BadStream`."""
    answer, begin = Answer(), time.monotonic()
    for event in events(lines):
        now = time.monotonic()
        if now - begin > seconds:
            raise BadStream(f"it was not at its end after {seconds:g} s")
        if answer.closed:
            raise BadStream("something came after [DONE]")
        if event is None:
            answer.closed = True
        elif "error" in event:
            raise BadStream(str(event["error"].get("message", event["error"])))
        else:
            _take(event, now, answer)
    return answer


def _take(event: dict[str, Any], now: float, answer: Answer) -> None:
    if usage := event.get("usage"):
        answer.tokens = usage["completion_tokens"]
    for choice in event.get("choices", []):
        if text := choice.get("delta", {}).get("content"):
            answer.first, answer.last = answer.first or now, now
            answer.text, answer.pieces = answer.text + text, answer.pieces + 1
        if reason := choice.get("finish_reason"):
            answer.finish.append(reason)


def faults(answer: Answer, language: Language, least_speed: float) -> list[str]:
    """Return the faults of an answer, one sentence each."""
    problems = [*_of_stream(answer), *gibberish(answer.text)]
    if (share := script_share(answer.text, language)) < _LEAST_SHARE:
        problems.append(f"{share:.0%} of its letters are {_SCRIPTS[language].title()}")
    if (foreign := foreign_share(answer.text, language)) > _MOST_FOREIGN:
        problems.append(f"{foreign:.0%} of its letters are of other scripts")
    if answer.tokens > 1 and answer.speed < least_speed:
        problems.append(f"{answer.speed:.1f} tokens/s are fewer than {least_speed:g}")
    return problems


def _of_stream(answer: Answer) -> Iterator[str]:
    if not answer.closed:
        yield "the stream ended without [DONE]"
    if len(answer.finish) != 1:
        yield f"it has {len(answer.finish)} finish reasons"
    if not answer.tokens:
        yield "it has no usage"
    if answer.tokens > 4 and answer.pieces < 2:
        yield "it came in one piece: something on the way holds streams back"


def script_share(text: str, language: Language) -> float:
    """Return the fraction of letters in the script of a language; 0 without letters."""
    letters = [character for character in text if character.isalpha()]
    count = sum(unicodedata.name(letter, "").startswith(_SCRIPTS[language]) for letter in letters)
    return count / len(letters) if letters else 0.0


def foreign_share(text: str, language: Language) -> float:
    """Return the fraction of letters that are in no script that a language uses."""
    letters = [character for character in text if character.isalpha()]
    used = (_SCRIPTS[language], *_ALSO[language])
    strange = sum(not unicodedata.name(letter, "").startswith(used) for letter in letters)
    return strange / len(letters) if letters else 0.0


def gibberish(text: str) -> list[str]:
    """Return signs of a wrongly loaded model: broken bytes, leaked tokens, loops, no words."""
    signs = []
    if "\N{REPLACEMENT CHARACTER}" in text:
        signs.append("it has bytes that are no text")
    if any(unicodedata.category(c) in ("Cc", "Co", "Cn") and c not in "\n\r\t" for c in text):
        signs.append("it has control or private characters")
    if len(_MISREAD.findall(text)) > 1:
        signs.append("it is UTF-8 that was read as Latin-1")
    if leaked := re.search(r"<\|[\w ]+\|>|</?s>|\[/?INST\]", text):
        signs.append(f"it shows the special token {leaked[0]}")
    if _loops(text.split()):
        signs.append("it says the same again and again")
    if Counter(map(len, text.split())).get(1, 0) > max(8, len(text.split()) // 2):
        signs.append("most of its words are single characters")
    return signs


def _loops(words: list[str]) -> bool:
    """Return whether one, two or three words repeat `_RUN` times in a row."""
    for size in (1, 2, 3):
        repeated = 0
        for at in range(size, len(words)):
            repeated = repeated + 1 if words[at] == words[at - size] else 0
            if repeated >= size * (_RUN - 1):
                return True
    return False


@dataclass(frozen=True)
class Verdict:
    """A question, its answer, and the faults found."""

    question: str
    answer: Answer
    faults: list[str]
    language: Language = "en"

    @property
    def score(self) -> float:
        """Share of its letters in the script of its language; -1 if the answer has faults."""
        return -1.0 if self.faults else round(script_share(self.answer.text, self.language), 4)


def ask(client: httpx.Client, model: str, question: str, options: Smoke) -> Answer:
    """Stream one answer. Raises `BadStream`."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": options.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    try:
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                text = response.read().decode(errors="replace")
                raise BadStream(f"status {response.status_code}: {text[:200]}")
            return follow(response.iter_lines(), options.seconds)
    except httpx.TimeoutException as error:
        raise BadStream(f"nothing came for {options.seconds:g} s") from error
    except httpx.HTTPError as error:
        raise BadStream(f"{type(error).__name__}: {error}") from error


def judge(client: httpx.Client, model: str, options: Smoke) -> Iterator[Verdict]:
    """Yield a verdict for every question of every language."""
    for language in options.languages:
        for question in QUESTIONS[language]:
            try:
                answer = ask(client, model, question, options)
            except BadStream as error:
                yield Verdict(question, Answer(), [str(error)], language)
            else:
                problems = faults(answer, language, options.least_speed)
                yield Verdict(question, answer, problems, language)


def _first_model(client: httpx.Client) -> str:
    try:
        models = client.get("/v1/models").raise_for_status().json()["data"]
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise unavailable(client.base_url, error) from error
    if not models:
        raise Unavailable("The server has no model yet: try again in a moment.")
    return str(models[0]["id"])


def table(verdicts: Iterable[Verdict]) -> Table:
    """One line per question."""
    grid = Table("question", "answer", "tokens/s", "verdict")
    for verdict in verdicts:
        answer, wrong = verdict.answer, "; ".join(verdict.faults)
        good = "[green]good[/]" if not wrong else f"[red]{wrong}[/]"
        text = shorten(answer.text, 80, placeholder=" ...")
        grid.add_row(verdict.question, text, f"{answer.speed:.1f}", good)
    return grid


def subject(languages: Iterable[Language]) -> str:
    """Identity of the questions in these languages."""
    questions = {language: QUESTIONS[language] for language in languages}
    return f"{','.join(questions)}:{sha256(json.dumps(questions).encode()).hexdigest()[:16]}"


def regressions(verdicts: Iterable[Verdict], stored: Baseline) -> Iterator[str]:
    """Yield a sentence for each answer that is worse than the baseline's."""
    for verdict in verdicts:
        previous, current = stored.scores.get(verdict.question, 0.0), verdict.score
        if previous >= 0 and verdict.faults:
            yield f"{verdict.question} It had no fault: {'; '.join(verdict.faults)}"
        elif current < previous - _SHARE_DROP:
            share = f"{current:.0%} of its letters are of its language ({previous:.0%})"
            yield f"{verdict.question} {share}"


def run(options: Smoke, console: Console) -> bool:
    """Ask the questions, print the verdicts, return whether all answers passed, or with a baseline
    whether none is worse."""
    about, stored = subject(options.languages), None
    if options.baseline is not None:
        stored = Baseline.read(options.baseline, "smoke", about)
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    with httpx.Client(base_url=options.url, headers=headers, timeout=options.seconds) as client:
        model = _first_model(client)
        verdicts = list(judge(client, model, options))
    console.print(table(verdicts))
    if options.write_baseline is not None:
        scores = {verdict.question: verdict.score for verdict in verdicts}
        Baseline("smoke", about, model, scores).write(options.write_baseline)
    if stored is None:
        return not any(verdict.faults for verdict in verdicts)
    worse = list(regressions(verdicts, stored))
    for sentence in worse:
        console.print(f"[red]Worse than the baseline:[/] {sentence}")
    return not worse


def main() -> None:
    """Run the command; exits with 1 when an answer fails."""
    try:
        good = run(Smoke.load(sys.argv[1:]), Console())
    except BatonError as error:
        fail("baton smoke", error)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
