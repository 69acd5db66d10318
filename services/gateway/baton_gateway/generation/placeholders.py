"""Media in a prompt: each marker of the chat template is replaced by all tokens of its item."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256

import msgspec

from baton.errors import InvalidRequest
from baton.protocol import Media, PreparedMedia
from baton.protocol.packed_tokens import PackedTokens
from baton.protocol.token_columns import unpack


def alone(item: PreparedMedia) -> tuple[PackedTokens, Media]:
    """A sequence that consists of one item."""
    tokens = PackedTokens(item.tokens)
    return tokens, _placed(item, 0, len(tokens))


def attended(ids: Sequence[int], item: PreparedMedia) -> tuple[PackedTokens, Media]:
    """A prompt whose tokens all attend to one item, represented by its first token."""
    return PackedTokens.of(ids), _placed(item, 0, 1)


def accompanied(ids: Sequence[int], item: PreparedMedia) -> tuple[PackedTokens, Media]:
    """A prompt with one item whose embeddings are added to its tokens and to those after it."""
    return PackedTokens.of(ids), _placed(item, 0, item.num_alongside)


def expand(
    ids: PackedTokens, items: Sequence[PreparedMedia]
) -> tuple[PackedTokens, tuple[Media, ...]]:
    """Return the prompt with every marker replaced by the tokens of its item, and their positions.

    Raises `InvalidRequest` if the chat template has not written one marker for each item, or a text
    before an item of a prefix-LM.
    """
    placed = [item for item in items if not item.num_within]
    markers = {item.marker for item in placed}
    written = [(place, token) for place, token in enumerate(ids) if token in markers]
    if [token for _, token in written] != [item.marker for item in placed]:
        raise InvalidRequest(
            f"The chat template of this model has written {len(written)} placeholders for the "
            f"{len(placed)} media items of this conversation. Put them into messages of the role "
            "'user', or correct BATON_TOKENIZER_CHAT_TEMPLATE.",
            code="unsupported_value",
            param="messages",
        )
    grown, media, last, places = array("i"), list[Media](), 0, iter(written)
    for item in items:
        if item.num_within:
            media.append(_placed(item, media[-1].start, media[-1].length))
            continue
        place, tokens = next(places)[0], unpack(item.tokens)
        grown.extend(ids[last:place])
        media.append(_placed(item, len(grown), len(tokens)))
        grown.extend(tokens)
        last = place + 1
    grown.extend(ids[last:])
    prompt = PackedTokens.of(grown)
    if items and items[0].whole_prompt:
        media[0] = _over_all(media[0], prompt)
    return prompt, tuple(media)


def _over_all(item: Media, ids: PackedTokens) -> Media:
    """An item of a prompt whose tokens all attend to one another. KV of each of them are those of
    this prompt alone, so all of it enters the digest."""
    if item.start:
        raise InvalidRequest(
            f"The chat template of this model has written {item.start} tokens before the image, "
            "with which a prompt of this model begins. Correct BATON_TOKENIZER_CHAT_TEMPLATE.",
            code="unsupported_value",
            param="messages",
        )
    digest = sha256(item.digest + ids.column).digest()
    return msgspec.structs.replace(item, digest=digest, spans=((0, len(ids)),))


def _placed(item: PreparedMedia, start: int, length: int) -> Media:
    return Media(
        digest=item.digest,
        start=start,
        length=length,
        pixels=item.pixels,
        grid=item.grid,
        spans=item.spans,
        seconds_per_grid=item.seconds_per_grid,
        num_states=item.num_states,
        is_embeds=item.is_embeds,
        num_within=item.num_within,
        alongside=item.num_alongside > 0,
    )
