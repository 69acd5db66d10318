"""What grammars force is run in one step: fewer steps, and not another token."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from baton.protocol import Grammar, Sampling
from baton_scheduler.options import SchedulerOptions
from baton_tokenizer.vocabulary.load import load
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.engine.engine import Engine
from baton_worker.structured_output.manager import StructuredOutputManager
from baton_worker.structured_output.vocabulary import Vocabulary
from tests.fakes.scheduler_planner import (
    Planner,
    Sequence,
    run_all,
)
from tests.support.worker.constrained_rows import (
    CHOICES,
    EOS,
    ONLY,
    PLAIN,
    Jumping,
    constraints,
    logs,
    samplings,
    text,
)
from tests.support.worker.scheduled_engine import STORY

EVERY = tuple(range(512))


@pytest.fixture(scope="module")
def jumping(stories: Path, vocabulary: Vocabulary) -> StructuredOutputManager:
    return constraints(stories, vocabulary, jump_ahead=True)


@pytest.fixture(scope="module")
def stepping(stories: Path, vocabulary: Vocabulary) -> StructuredOutputManager:
    return constraints(stories, vocabulary, jump_ahead=False)


@pytest.fixture(scope="module")
def expected(loaded: LoadedModel, stepping: StructuredOutputManager) -> list[list[int]]:
    """Token by token, a plan for every step, and each after the result of the one before."""
    return logs(Jumping(loaded, stepping, PLAIN), samplings())


@pytest.mark.row("F10.01", "F10.02", "F10.03")
def test_the_outputs_are_whole(expected: list[list[int]], vocabulary: Vocabulary) -> None:
    texts = [text(vocabulary, log) for log in expected]
    assert 3 <= json.loads(texts[0])["age"] <= 12
    assert texts[1].endswith("The end.") and texts[2] in CHOICES and texts[3] == ONLY
    assert len(expected[5]) == 7 and ONLY.startswith(texts[5])


@pytest.mark.parametrize(
    ("depth", "max_steps", "pages"), [(1, 1, 200), (2, 1, 200), (4, 8, 200), (2, 8, 24)]
)
def test_jumping_ahead_changes_no_token(
    loaded: LoadedModel,
    jumping: StructuredOutputManager,
    expected: list[list[int]],
    depth: int,
    max_steps: int,
    pages: int,
) -> None:
    one = Jumping(
        loaded,
        jumping,
        SchedulerOptions(plans_in_flight=depth, max_steps_per_plan=max_steps),
        pages,
    )
    assert logs(one, samplings()) == expected
    assert any(max(result.counts, default=0) > 3 for result in one.results)
    assert pages == 200 or one.state.counters.preemptions > 0


def test_a_row_that_has_run_to_the_end_of_its_pages_waits(
    loaded: LoadedModel, jumping: StructuredOutputManager, expected: list[list[int]]
) -> None:
    one = Jumping(
        loaded, jumping, SchedulerOptions(plans_in_flight=4, max_steps_per_plan=8), pages=20
    )
    assert logs(one, samplings()[3:4])[0] == expected[3]
    assert any(0 in result.counts for result in one.results)


def test_fewer_steps(
    loaded: LoadedModel, jumping: StructuredOutputManager, stepping: StructuredOutputManager
) -> None:
    steps = []
    for like in (jumping, stepping):
        one = Jumping(loaded, like, SchedulerOptions(max_steps_per_plan=1))
        logs(one, samplings()[:1])
        steps.append(len(one.results))
    assert steps[0] < 0.7 * steps[1]


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_log_is_continued_at_any_index(
    loaded: LoadedModel,
    jumping: StructuredOutputManager,
    stepping: StructuredOutputManager,
    expected: list[list[int]],
    number: int,
) -> None:
    log, sampling = expected[number], samplings()[number]
    for like in (jumping, stepping):
        one = Jumping(loaded, like, pages=400)
        for cut in range(number, len(log), 5):
            one.submit(STORY[: 3 + number % 4], sampling, log=log[:cut])
        assert all(found == log for found in one.finish().values())


def test_logprobs_of_forced_tokens(
    loaded: LoadedModel, jumping: StructuredOutputManager, stepping: StructuredOutputManager
) -> None:
    told = []
    for like in (jumping, stepping):
        one = Jumping(loaded, like)
        found = logs(one, samplings()[:4])
        assert [len(one.logprobs[handle]) for handle in range(4)] == [len(log) for log in found]
        told.append(one.logprobs)
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "said", [{"logit_bias": {300: 1.0}}, {"bad_words": ((300, 301),)}, {"allowed_ids": EVERY}]
)
def test_who_has_a_say_in_tokens_may_spell_as_it_likes(
    loaded: LoadedModel,
    jumping: StructuredOutputManager,
    stepping: StructuredOutputManager,
    said: dict[str, Any],
) -> None:
    asked = samplings(max_tokens=20, **said)[1:4]
    one = Jumping(loaded, jumping)
    assert logs(one, asked) == logs(Jumping(loaded, stepping), asked)
    assert all(set(result.counts) <= {1} for result in one.results)


def test_a_stop_id_is_never_forced(
    loaded: LoadedModel,
    jumping: StructuredOutputManager,
    stepping: StructuredOutputManager,
    expected: list[list[int]],
) -> None:
    """The spelling of a text has tokens that end the output: others are found."""
    inner = tuple(expected[3][2:6])
    asked = samplings(stop_ids=(EOS, *inner))[3:4]
    [log] = logs(Jumping(loaded, jumping), asked)
    assert [log] == logs(Jumping(loaded, stepping), asked)
    assert not set(inner) & set(log) and log != expected[3]


INVOICE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "vendor_name": {"type": "string", "maxLength": 20},
        "vendor_address": {
            "type": "object",
            "properties": {
                "street_address": {"type": "string", "maxLength": 25},
                "city": {"type": "string", "maxLength": 15},
            },
            "required": ["street_address", "city"],
            "additionalProperties": False,
        },
        "customer_name": {"type": "string", "maxLength": 20},
        "total_amount": {"type": "integer", "minimum": 0, "maximum": 99999},
        "currency_code": {"enum": ["USD", "EUR", "GBP"]},
        "invoice_date": {"type": "string", "format": "date"},
        "payment_status": {"enum": ["paid", "unpaid", "overdue"]},
        "is_recurring_invoice": {"type": "boolean"},
    },
    "additionalProperties": False,
}
INVOICE["required"] = list(INVOICE["properties"])
ASK = (
    "<|im_start|>user\nExtract the invoice as JSON: ACME Ltd of 12 Main Street, Springfield, "
    "billed Jane Doe 129 dollars on 3 May 2024, unpaid.<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.mark.slow
def test_a_typical_answer_of_real_weights(smollm2: Path) -> None:
    """Prints what docs/api/structured-output.md says: steps and processor time, off and on."""
    prompt = load(smollm2).tokenizer.encode(ASK, add_special_tokens=False).ids
    engines = [
        Engine.build(
            Config(
                model=str(smollm2), jump_forward=jump_ahead, num_gpu_blocks_override=64, threads=1
            )
        )
        for jump_ahead in (False, True)
    ]
    for compact in (True, False):
        grammar = Grammar("json_schema", json.dumps(INVOICE), compact)
        asked = Sampling(200, temperature=0, stop_ids=(2,), grammar=grammar)
        ran = []
        for engine in engines:
            engine.reset()
            planner, sequence = Planner(engine, num_pages=64), Sequence(prompt, asked)
            started_at = time.process_time()
            [log] = run_all(planner, [sequence])
            ran.append((log, planner.steps, time.process_time() - started_at))
        (log, steps, seconds), (jumped, fewer, less) = ran
        assert jumped == log and sequence.finish == "stop"
        assert fewer < (0.55 if compact else 0.8) * steps
        print(f"compact {compact}: {steps}/{fewer} steps, {seconds / less:.2f} times as fast")
