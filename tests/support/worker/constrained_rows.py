"""Rows that follow grammars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from baton.protocol import Grammar, Sampling, Tokens
from baton.protocol.token_columns import unpack
from baton_scheduler.options import SchedulerOptions
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.speculative.proposer import Proposer
from baton_worker.structured_output.jump_forward import Spelling, encoder
from baton_worker.structured_output.llguidance import Guidance
from baton_worker.structured_output.manager import StructuredOutputManager
from baton_worker.structured_output.vocabulary import Vocabulary
from tests.fakes.scheduler_planner import (
    entries,
)
from tests.support.worker.scheduled_engine import STORY, House

EOS = 2


SCHEMA = {
    "type": "object",
    "properties": {
        "the_name_of_the_little_girl": {"enum": ["Lily", "Mia"]},
        "was_she_happy_on_that_day": {"type": "boolean"},
        "age": {"type": "integer", "minimum": 3, "maximum": 12},
    },
    "required": ["the_name_of_the_little_girl", "was_she_happy_on_that_day", "age"],
    "additionalProperties": False,
}


REGEX = r"Once upon a time there was a (girl|boy) who had (one|two|many) friends?\. The end\."


CHOICES = ["the quick brown fox", "the quick brown dog", "a slow one"]


ONLY = "exactly this, and no other text, whatever it costs"


GRAMMARS = [
    Grammar("json_schema", json.dumps(SCHEMA), compact=True),
    Grammar("regex", REGEX),
    Grammar("choice", json.dumps(CHOICES)),
    Grammar("choice", json.dumps([ONLY])),
]


class Jumping(House):
    """A house whose rows may bring several tokens, and that keeps what is told of each."""

    def __init__(
        self,
        loaded: LoadedModel,
        like: StructuredOutputManager,
        limits: SchedulerOptions | None = None,
        pages: int = 200,
        proposer: Proposer | None = None,
        **drafting: Any,
    ) -> None:
        super().__init__(loaded, limits, num_pages=pages, proposer=proposer, **drafting)
        self.runner.batch.sampling.grammars = like.fresh()
        self.logprobs: dict[int, list[Any]] = {}

    def _hear(self, message: Tokens) -> None:
        counts, first = unpack(message.counts, "B"), unpack(message.first, "I")
        handles = unpack(message.handles, "I").tolist()
        assert all(counts) and [len(self.logs[h]) for h in handles] == first.tolist()
        owners = np.repeat(handles, counts).tolist() if handles else []
        for owner, token in zip(owners, unpack(message.tokens), strict=True):
            self.logs[owner].append(token)
        if message.logprobs is not None:
            for row, *told in sorted(entries(message.logprobs)):
                self.logprobs.setdefault(owners[row], []).append(told)


def constraints(path: Path, vocabulary: Vocabulary, *, jump_ahead: bool) -> StructuredOutputManager:
    spelling = Spelling(vocabulary, encoder(path, vocabulary))
    size = len(vocabulary.pieces)
    return StructuredOutputManager(Guidance(vocabulary), size, spelling, jump_ahead=jump_ahead)


def samplings(**fields: Any) -> list[Sampling]:
    fields = {"max_tokens": 90, "stop_ids": (EOS,), "logprobs": 2} | fields
    every = [Sampling(seed=1, grammar=g, **fields) for g in GRAMMARS]
    # A free one beside them, one that ends in the middle of what is forced, one of many spaces.
    cut = Sampling(7, grammar=GRAMMARS[3], stop_ids=(EOS,))
    spaced = Sampling(60, seed=3, grammar=Grammar("json_schema", json.dumps(SCHEMA)))
    return [*every, Sampling(30, seed=9), cut, spaced]


def logs(one: House, asked: list[Sampling]) -> list[list[int]]:
    for number, sampling in enumerate(asked):
        one.submit(STORY[: 3 + number % 4], sampling)
    return list(one.finish().values())


def text(vocabulary: Vocabulary, log: list[int]) -> str:
    return b"".join(vocabulary.pieces[token] for token in log if token != EOS).decode()


PLAIN = SchedulerOptions(plans_in_flight=1, max_steps_per_plan=1)
