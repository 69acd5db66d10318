"""Why a prompt was not in the cache: pages of 4 tokens, prompts of 18."""

from __future__ import annotations

import pytest

from baton.protocol import QueueEstimate, Sampling
from baton_scheduler.options import SchedulerOptions
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import Request, World

PROMPT = list(range(1, 19))


def world(num_pages: int = 32, **limits: bool) -> World:
    made = World(SchedulerOptions(**limits))  # type: ignore[arg-type]
    made.join("w", worker_info(num_pages=num_pages, page_size=4, max_num_seqs=4))
    return made


def ask(
    here: World, prompt: list[int], salt: bytes = b"", tenant: str = "", **more: int
) -> Request:
    sampling = Sampling(2, seed=1, **more)  # type: ignore[arg-type]
    request = here.submit(prompt, sampling, salt=salt, tenant=tenant, report=True)
    here.finish()
    return request


def said(request: Request) -> tuple[str, int]:
    assert request.note is not None
    return request.note.miss_reason, request.note.miss_position


def test_what_was_never_seen_is_cold() -> None:
    assert said(ask(world(), PROMPT)) == ("cold", 0)


def test_the_same_again_misses_nothing() -> None:
    here = world()
    ask(here, PROMPT)
    assert said(ask(here, PROMPT)) == ("none", 17)


@pytest.mark.parametrize("at", [0, 1, 4, 6, 8, 17])
def test_another_prompt_differs_from_its_first_other_token(at: int) -> None:
    here = world()
    ask(here, PROMPT)
    reason, token = said(ask(here, [*PROMPT[:at], 99, *PROMPT[at:]]))
    assert (reason, token) == ("differs", at)


def test_a_longer_prompt_goes_on_where_the_cache_ends() -> None:
    here = world()
    first = ask(here, PROMPT[:14])
    # 14 + 2 tokens, of which the last was never run.
    assert said(ask(here, [*PROMPT[:14], *first.tokens[:1], 5, 6, 7, 8])) == ("differs", 15)
    here = world()
    ask(here, PROMPT[:16], prompt_logprobs=-1)
    here.clear_cache()
    ask(here, PROMPT[:15])
    # 15 + 2 - 1 = 16 keys: whole pages, and nothing behind them.
    again = [*PROMPT[:15], here.requests["g", 2].tokens[0], 40, 41]
    assert said(ask(here, again)) == ("end", 16)


def test_what_made_room_was_evicted() -> None:
    here = world(num_pages=8)
    ask(here, PROMPT)
    ask(here, [50 + i for i in range(26)])
    # Of a chain, the end goes first: the first page is left.
    assert said(ask(here, PROMPT)) == ("evicted", 4)
    assert said(ask(here, PROMPT))[0] == "none", "it is back"


def test_a_reset_counts_as_an_eviction() -> None:
    here = world()
    ask(here, PROMPT)
    here.clear_cache()
    assert said(ask(here, PROMPT)) == ("evicted", 0)


def test_only_a_salt_of_the_asker_itself_is_named() -> None:
    here = world()
    ask(here, PROMPT, tenant="a")
    assert said(ask(here, PROMPT, salt=b"x", tenant="a")) == ("salt", 0)
    assert said(ask(here, PROMPT, salt=b"x", tenant="b")) == ("cold", 0), "of another tenant"
    here = world()
    ask(here, PROMPT, salt=b"x")
    assert said(ask(here, PROMPT, salt=b"y")) == ("cold", 0), "of other salts nothing is said"
    assert said(ask(here, PROMPT)) == ("cold", 0)


def test_what_must_be_computed_whole_could_not_be_found() -> None:
    here = world()
    ask(here, PROMPT)
    assert said(ask(here, PROMPT, prompt_logprobs=0)) == ("whole", 0)


def test_without_a_cache_nothing_is_found() -> None:
    assert said(ask(world(enable_prefix_caching=False), PROMPT)) == ("off", 0)


def test_who_does_not_ask_is_told_no_reason() -> None:
    here = world()
    request = here.submit(PROMPT, Sampling(2))
    here.finish()
    assert request.note == QueueEstimate(0, -1)


def test_the_memory_of_evictions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_scheduler.kv.prefix_cache._MOST_EVICTED", 3)
    here = world(num_pages=8)
    for start in range(0, 400, 40):
        ask(here, [start + i for i in range(26)])
    index = here.state.fleet.get("w").pool.index  # type: ignore[union-attr]
    assert len(index._evicted) == 3
