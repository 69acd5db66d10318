"""Block hashes of growing sequences."""

from __future__ import annotations

import pytest

from baton.protocol import Blob, Media, Sampling, Submit
from baton.protocol.token_columns import block_hashes, pack, unpack
from baton_scheduler.block_hashes import BlockHashes, media_key, salt
from tests.support.block_hashes import chain


@pytest.mark.row("F12.02")
@pytest.mark.parametrize("size", [1, 3, 4, 16])
def test_a_chain_that_grows_equals_the_hashes_of_the_whole(size: int) -> None:
    prompt, log = list(range(7)), unpack(b"")
    submit = Submit(1, "r", pack(prompt), Sampling(99), tenant="a", salt=b"s")
    growing = BlockHashes(submit, log, size)
    for token in range(50, 75):
        log.append(token)
        wanted = block_hashes([*prompt, *log], size, salt(submit))
        assert [growing.at(block) for block in range(len(wanted))] == wanted


def test_a_block_without_its_last_token_has_no_name() -> None:
    with pytest.raises(AssertionError, match="last token"):
        chain([1, 2, 3]).at(1)


@pytest.mark.row("F12.02", "F11.01")
def test_adapter_tenant_and_salt_cannot_be_mistaken_for_each_other() -> None:
    roots = [
        ("", b"", b""),
        ("a", b"", b""),
        ("", b"a", b""),
        ("ab", b"", b""),
        ("a", b"b", b""),
        ("1:a", b"", b""),
        ("", b"1:a", b""),
        ("", b"", b"a"),
        ("", b"lora:1:a0:", b""),
        ("", b"", b"a0:"),
        ("lora:1:a", b"", b""),
    ]
    hashes = {chain([1, 2], tenant=t, salt=s, adapter=a).at(0) for t, s, a in roots}
    assert len(hashes) == len(roots)


def image(name: bytes, start: int, length: int) -> Media:
    return Media(name * 32, start, length, Blob("float32", (), b""))


def test_alike_tokens_of_different_images_are_different_blocks() -> None:
    """From the first block with a token of the image on; the prefix of a block that is not full
    tells them apart too."""
    plain, red, blue, early = (
        chain([1, 2, 3, 9, 9, 9, 4, 5], media=media)
        for media in ((), (image(b"r", 3, 3),), (image(b"b", 3, 3),), (image(b"r", 2, 3),))
    )
    assert plain.at(0) == red.at(0) == blue.at(0)
    for block in (1, 2, 3):
        assert len({each.at(block) for each in (plain, red, blue, early)}) >= 3
        assert red.at(block) != blue.at(block) != plain.at(block)
    assert len({each.prefix(1) for each in (plain, red, blue)}) == 3
    assert red.prefix(3) == red.at(2), "there is no image in this block"
    for block in range(4):
        assert red.link(block) == (
            red.at(block),
            red.prefix(block),
            red.content(2 * block, 2 * block + 2),
        )


def test_media_have_names_of_their_own_in_each_salt() -> None:
    submits = [
        Submit(1, "r", pack([1]), Sampling(9), tenant=tenant, salt=salt)
        for tenant, salt in (("", b""), ("a", b""), ("", b"a"))
    ]
    names = {media_key(submit, digest, b"") for submit in submits for digest in (b"r", b"b")}
    assert len(names) == 6 and {len(name) for name in names} == {32}


def test_a_link_is_the_same_whether_its_block_is_the_next_or_was_asked_for_before() -> None:
    one, other = chain([1, 2, 3, 4, 5, 6]), chain([1, 2, 3, 4, 5, 6])
    other.at(2)
    for block in range(3):
        hash, prefix, tokens = one.link(block)
        assert other.link(block) == (hash, prefix, tokens)
        assert (hash, prefix) == (other.at(block), other.at(block - 1))
        assert tokens == one.content(2 * block, 2 * block + 2)
    with pytest.raises(AssertionError, match="no hash"):
        one.link(3)
