"""The life cycle of a sequence."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from baton.protocol import Blob, Media, Sampling, Submit
from baton.protocol.token_columns import pack, unpack
from baton_scheduler.queueing.queue import fcfs
from baton_scheduler.sequence import Sequence, sequence


def arrive(sampling: Sampling | None = None, log: bytes = b"", tokens: bytes = b"") -> Sequence:
    return made(Submit(7, "r", tokens or pack([1, 2, 3]), sampling or Sampling(4), log=log))


def made(submit: Submit) -> Sequence:
    return sequence("g", submit, "trace", 1, 0.0, fcfs)


def test_it_goes_out_and_back_and_ends_once() -> None:
    one = arrive()
    one.place("w", 3)
    assert (one.worker, one.slot) == ("w", 3)
    one.leave()
    one.end()
    with pytest.raises(AssertionError):
        one.end()


def test_it_cannot_be_in_two_places() -> None:
    one = arrive()
    one.place("w", 0)
    with pytest.raises(AssertionError):
        one.place("v", 0)


def test_it_cannot_end_while_a_worker_holds_it() -> None:
    one = arrive()
    one.place("w", 0)
    with pytest.raises(AssertionError):
        one.end()


@pytest.mark.row("F13.05")
def test_its_entry_carries_prompt_and_log() -> None:
    one = arrive(log=pack([8, 9]))
    one.place("w", 5)
    entry = one.entry()
    assert unpack(entry.tokens).tolist() == [1, 2, 3, 8, 9]
    assert (entry.slot, entry.num_prompt, entry.trace) == (5, 3, "trace")


def test_a_prompt_is_scored_once() -> None:
    assert arrive(Sampling(4, prompt_logprobs=2)).entry().sampling.prompt_logprobs == 2
    continued = arrive(Sampling(4, prompt_logprobs=2), log=pack([8]))
    assert continued.entry().sampling.prompt_logprobs == -1


@pytest.mark.parametrize(
    ("sampling", "log", "complete"),
    [
        (Sampling(2), b"", False),
        (Sampling(2), pack([1, 2]), True),
        (Sampling(0), b"", True),
        (Sampling(0, prompt_logprobs=1), b"", False),
    ],
)
def test_it_knows_when_nothing_is_left_to_compute(
    sampling: Sampling, log: bytes, complete: bool
) -> None:
    assert arrive(sampling, log).complete is complete


def test_a_torn_column_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        arrive(tokens=b"12345")


@pytest.mark.parametrize(("handle", "max_tokens"), [(-1, 1), (2**32, 1), (1, -1), (1, 2**31)])
def test_a_number_out_of_range_is_refused(handle: int, max_tokens: int) -> None:
    submit = Submit(handle, "r", pack([1]), Sampling(max_tokens))
    with pytest.raises(ValueError, match="out of range"):
        sequence("g", submit, "", 1, 0.0, fcfs)


@pytest.mark.parametrize(
    ("start", "length", "name"), [(0, 0, b"d" * 32), (1, 2, b"d"), (2, 2, b"d" * 32)]
)
def test_media_without_name_or_place_are_refused(start: int, length: int, name: bytes) -> None:
    item = Media(name, start, length, Blob("float32", (), b""))
    with pytest.raises(ValueError, match="media item"):
        made(Submit(1, "r", pack([1, 2, 3]), Sampling(9), media=(item,)))
    good = Media(b"d" * 32, 0, 2, Blob("float32", (), b""))
    with pytest.raises(ValueError, match="no place"):
        made(Submit(1, "r", pack([1, 2, 3]), Sampling(9), media=(good, good)))


def test_media_that_goes_along_bounds_the_tokens() -> None:
    heard = Media(b"d" * 32, 0, 9, Blob("float32", (), b""), alongside=True)
    assert made(Submit(1, "r", pack([1, 2, 3]), Sampling(6), media=(heard,)))
    with pytest.raises(ValueError, match="ends before them"):
        made(Submit(1, "r", pack([1, 2, 3]), Sampling(7), media=(heard,)))


def test_a_sound_stands_where_its_video_does() -> None:
    """Among the same tokens, of which it has some, and behind nothing else."""
    clip = Media(b"d" * 32, 1, 2, Blob("float32", (), b""))
    heard = replace(clip, digest=b"e" * 32, num_within=1)
    assert made(Submit(1, "r", pack([1, 2, 3]), Sampling(9), media=(clip, heard)))
    assert (clip.num_encoded, heard.num_encoded) == (2, 1)
    for bad in (
        (heard, clip),
        (clip, replace(heard, start=0)),
        (clip, replace(heard, num_within=3)),
    ):
        with pytest.raises(ValueError, match="no place"):
            made(Submit(1, "r", pack([1, 2, 3]), Sampling(9), media=bad))


def test_choices_wait_for_the_first_only_if_they_see_the_same() -> None:
    def seeing(name: bytes) -> Sequence:
        item = Media(name * 32, 0, 2, Blob("float32", (), b""))
        return made(Submit(1, "r", pack([1, 2, 3]), Sampling(9), media=(item,)))

    first, same, other = seeing(b"a"), seeing(b"a"), seeing(b"b")
    same.follow(first)
    other.follow(first)
    assert same.leader is first and other.leader is None
    assert first.entry().media[0].digest not in (b"a" * 32, other.entry().media[0].digest)


def test_pixels_go_along_until_their_tokens_are_computed() -> None:
    media = tuple(Media(b"d" * 32, start, 2, Blob("float32", (1,), bytes(4))) for start in (0, 2))
    one = made(Submit(1, "r", pack([1, 2, 3, 4, 5]), Sampling(9), media=media))
    assert one.media_bytes == 8
    for computed, sizes in ((0, [4, 4]), (1, [4, 4]), (2, [0, 4]), (4, [0, 0])):
        assert [len(item.pixels.data) for item in one.entry(computed).media] == sizes
