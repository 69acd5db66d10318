"""From deltas to `GenerateResponse`."""

from __future__ import annotations

from array import array
from typing import Any

from baton.protocol.packed_tokens import PackedTokens
from baton.protocol.token_columns import pack
from baton_gateway.generation.output import OutputDelta, Started, TokenLogprob
from baton_gateway.grpc.responses import ResponseWriter

SCORED = TokenLogprob(7, -0.5, 1, ((7, -0.5), (8, -1.5)))


def writer(logprobs: int = -1, prompt_logprobs: int = -1, n: int = 1) -> ResponseWriter:
    started = Started((PackedTokens(pack([1, 2])),))
    return ResponseWriter(started, logprobs, prompt_logprobs, set(range(n)))


def delta(choice: int = 0, tokens: tuple[int, ...] = (7,), **fields: Any) -> OutputDelta:
    return OutputDelta(choice, "x", array("i", tokens), **fields)


def test_chunks_have_what_is_new_and_the_end_names_its_reason() -> None:
    ours = writer(n=2)
    [first] = ours.streamed(delta(cached=1))
    assert list(first.chunk.token_ids) == [7] and first.chunk.completion_tokens == 1
    assert (first.chunk.prompt_tokens, first.chunk.cached_tokens) == (2, 1)
    chunk, end = ours.streamed(delta(1, (8, 9), reason="stop", stop=9))
    assert chunk.chunk.index == end.complete.index == 1
    assert list(end.complete.output_ids) == [8, 9]
    assert (end.complete.finish_reason, end.complete.matched_token_id) == ("stop", 9)
    assert ours.open == {0}
    [end] = ours.streamed(delta(0, (), reason="stop", stop="END"))
    assert end.complete.matched_stop_str == "END" and not ours.open


def test_log_probabilities_are_those_asked_for() -> None:
    scored = delta(logprobs=(SCORED,), prompt_logprobs=(None, SCORED))
    [plain] = writer().streamed(scored)
    assert not plain.chunk.HasField("output_logprobs")
    assert not plain.chunk.HasField("input_logprobs")
    [chosen] = writer(0).streamed(scored)
    assert list(chosen.chunk.output_logprobs.token_logprobs) == [-0.5]
    assert not chosen.chunk.output_logprobs.top_logprobs
    [full] = writer(1, 2).streamed(scored)
    assert [list(top.token_ids) for top in full.chunk.output_logprobs.top_logprobs] == [[7]]
    prompt = full.chunk.input_logprobs
    assert list(prompt.token_ids) == [1, 2]
    assert [one.HasField("value") for one in prompt.token_logprobs] == [False, True]
    assert [list(top.token_ids) for top in prompt.top_logprobs] == [[], [7, 8]]
