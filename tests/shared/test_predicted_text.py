"""Where an output stands in the text that a client expects."""

from __future__ import annotations

from baton.predicted_text import PredictedText
from baton.protocol.token_columns import pack


def following(text: list[int], *output: int) -> PredictedText:
    predicted = PredictedText(pack(text))
    predicted.feed(output)
    return predicted


def test_it_begins_at_the_beginning_and_goes_on_as_predicted() -> None:
    text = [5, 6, 7, 8]
    for fed, following_tokens in ((0, [5, 6]), (1, [6, 7]), (3, [8]), (4, [])):
        predicted = following(text, *text[:fed])
        assert predicted.next(2).tolist() == following_tokens
        assert (predicted.accepted, predicted.num_fed, len(predicted)) == (fed, fed, 4)


def test_what_differs_is_passed_over_and_found_again() -> None:
    text = [1, 2, 3, 4, 5, 6, 7]
    predicted = following(text, 1, 2, 9)
    assert not predicted.next(9)
    predicted.feed([4])
    assert not predicted.next(9), "one token is too little"
    predicted.feed([5])
    assert predicted.next(9).tolist() == [6, 7]
    predicted.feed([6, 7])
    assert predicted.accepted == 4


def test_the_next_place_comes_before_an_earlier_one() -> None:
    text = [1, 2, 3, 8, 1, 2, 4]
    assert following(text, 1, 2, 3, 9, 1, 2).next(1).tolist() == [4]
    assert following(text, 1, 2, 3, 8, 1, 2, 4, 9, 2, 3).next(1).tolist() == [8]


def test_tokens_are_found_at_their_own_places() -> None:
    """Bytes of two tokens may look like a token between them."""
    assert not following([0x0201, 0x0403, 0x0605], 7, 0x04030000, 0x06050000).next(1)
    assert not PredictedText(b"").next(3)
