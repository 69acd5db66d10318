"""Speculation against none: tokens/s of one server, in turn with and without drafts.

`python -m tests.benchmarks.speculation` starts `baton serve` with a method and asks it, round after
round, the same prompts once with drafts and once with `"speculative": {"num_speculative_tokens":
0}`, so a ratio is of one process and one moment. It also checks that all answers are equal. With
`--config '{"model": DRAFTER, "num_speculative_tokens": 4}'` a second model drafts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.support.served_system import Served

ROOT = Path(__file__).parents[2]
ASSETS = Path(os.environ.get("BATON_TEST_ASSETS", ROOT.parent / "shared" / "assets"))
QUESTIONS = ASSETS / "prompts/spec_bench_question.jsonl"
EDITED = sorted((ROOT / "shared/baton").rglob("*.py"))
"""Files whose beginnings are to be edited."""
STREAMS = (1, 4, 16)


def edits(count: int) -> list[str]:
    """Write a file again with one change: most of the answer stands in the question."""
    files = [path.read_text() for path in EDITED]
    texts = ["\n".join(text.splitlines()[:40]) for text in files if len(text.splitlines()) > 40]
    ask = "Write this Python file again, with the comment '# checked' as its first line:"
    return [f"{ask}\n\n```python\n{text}\n```" for text in texts[:count]]


def questions(path: Path, count: int, *categories: str) -> list[str]:
    """First turns of Spec-Bench's questions of these categories."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["turns"][0] for row in rows if row["category"] in categories][:count]


def ask(served: Served, prompt: str, drafts: bool, tokens: int) -> tuple[str, int]:
    """Text and number of tokens of a greedy answer."""
    body: dict[str, Any] = {
        "model": served.fleet()["model"],
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
    }
    if not drafts:
        body["speculative"] = {"num_speculative_tokens": 0}
    found = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=600).json()
    return found["choices"][0]["message"]["content"], found["usage"]["completion_tokens"]


def run(
    served: Served, prompts: list[str], streams: int, drafts: bool, tokens: int
) -> tuple[float, list[str]]:
    """Tokens/s and the texts."""
    begin = time.perf_counter()
    with ThreadPoolExecutor(streams) as threads:
        answers = list(threads.map(lambda prompt: ask(served, prompt, drafts, tokens), prompts))
    took = time.perf_counter() - begin
    return sum(count for _, count in answers) / took, [text for text, _ in answers]


def compare(
    served: Served, prompts: list[str], streams: int, tokens: int, rounds: int
) -> dict[str, Any]:
    """Medians of alternate rounds behind one that fills the prefix cache."""
    speeds: dict[bool, list[float]] = {True: [], False: []}
    _, expected = run(served, prompts, streams, False, tokens)
    for number in range(rounds):
        for drafts in (number % 2 == 0, number % 2 == 1):
            speed, texts = run(served, prompts, streams, drafts, tokens)
            assert texts == expected, "an answer is another one with drafts"
            speeds[drafts].append(speed)
    ratios = [on / off for on, off in zip(speeds[True], speeds[False], strict=True)]
    return {
        "with": round(statistics.median(speeds[True]), 1),
        "without": round(statistics.median(speeds[False]), 1),
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
    }


def counted(served: Served) -> dict[str, float]:
    """The server's own counters of drafts."""
    lines = httpx.get(f"{served.url}/metrics", timeout=60).text.splitlines()
    rows = (line.rsplit(" ", 1) for line in lines if line.startswith("baton_spec_decode"))
    return {name: float(value) for name, value in rows if "_created" not in name}


def main() -> None:
    """Print a line of JSON per prompt set and number of streams."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.speculation")
    parser.add_argument(
        "--config",
        default='{"method": "ngram", "num_speculative_tokens": 5}',
        help="as baton serve's",
    )
    parser.add_argument("--model", default=None)
    parser.add_argument("--questions", type=Path, default=QUESTIONS, help="Spec-Bench's JSON lines")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sets", default="edit,summary,chat")
    parser.add_argument("--streams", default="1,4,16")
    given = parser.parse_args()
    sets = {
        "edit": edits(16),
        "summary": questions(given.questions, 16, "summarization"),
        "chat": questions(given.questions, 16, "writing", "roleplay", "reasoning", "stem"),
    }
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--speculative-config", given.config)
        served = Served(Path(folder), given.model, *flags)
        try:
            served.ready()
            for name in given.sets.split(","):
                for streams in map(int, given.streams.split(",")):
                    before = counted(served)
                    prompts = sets[name][: max(4, streams)]
                    found = compare(served, prompts, streams, given.tokens, given.rounds)
                    after = counted(served)
                    drafts = {key[24:]: after[key] - before.get(key, 0.0) for key in after}
                    print(
                        json.dumps({"set": name, "streams": streams, **found, **drafts}), flush=True
                    )
        finally:
            for line in served.log.read_text().splitlines():
                if "steps take" in line or "drafting takes" in line:
                    print(line, flush=True)
            served.close()


if __name__ == "__main__":
    main()
