"""The target's half against the source's, over real sockets."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from baton.protocol import Pull, Pulled
from baton.tokens import pack
from baton_worker.kv.transfer import Exporter, Importer, exporter, importer
from tests.fakes.pages import GRANT, LENGTH, SOURCE_PAGES, TOKEN, cache, filled, tokens


def pull(source: Exporter, pages: list[int], **fields: object) -> Pull:
    given: dict[str, object] = {"token": TOKEN, "start": 0, "end": LENGTH} | fields
    return Pull(1, 9, source.address, pages=pack(pages, "I"), **given)  # type: ignore[arg-type]


def ended(importer: Importer) -> Pulled:
    deadline = time.monotonic() + 30
    while not (found := importer.finished()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert not importer.busy
    return found[0]


@pytest.mark.parametrize("page_size", [4, 8, 16])
def test_keys_arrive_bit_for_bit_whatever_the_page_sizes(source: Exporter, page_size: int) -> None:
    target = cache(page_size)
    pages = list(reversed(range(64 // page_size)))
    source.grant(GRANT)
    halves = Importer(target, "w")
    for start, end in ((0, 21), (21, LENGTH)):
        halves.start(pull(source, pages, start=start, end=end))
        assert ended(halves).reason == ""
    for layer in range(2):
        wanted = tokens(filled(8), layer, SOURCE_PAGES)
        assert torch.equal(tokens(target, layer, pages), wanted)


def test_it_touches_no_other_token(source: Exporter) -> None:
    source.grant(GRANT)
    target, untouched = cache(8), cache(8)
    both = Importer(target, "w")
    both.start(pull(source, [1, 2, 3, 4, 5], start=3, end=5))
    found = ended(both)
    assert found.num_bytes == 2 * (1 + 4) * 2 * 8 * 2
    for layer in range(2):
        target.layers[layer][1, 3:5] = 0
        assert torch.equal(target.layers[layer], untouched.layers[layer])


def test_it_waits_for_a_grant_that_is_on_its_way(source: Exporter) -> None:
    late = Importer(cache(8), "w")
    late.start(pull(source, [0, 1, 2, 3, 4]))
    time.sleep(0.05)
    assert late.finished() == []
    source.grant(GRANT)
    assert ended(late).reason == ""


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"token": b"x" * 16}, "refuses"),
        ({"token": b""}, "refuses"),
        ({"end": LENGTH + 1}, "refuses"),
        ({"end": 1000}, "do not fit"),
        ({"start": -1}, "do not fit"),
        ({"start": 5, "end": 5}, "do not fit"),
    ],
)
def test_what_is_not_granted_is_refused(
    source: Exporter, fields: dict[str, object], reason: str
) -> None:
    source.grant(GRANT)
    target = Importer(cache(8), "w")
    target.start(pull(source, [0, 1, 2, 3, 4], **fields))
    assert reason in ended(target).reason


def test_pages_beyond_the_target_are_refused(source: Exporter) -> None:
    source.grant(GRANT)
    target = Importer(cache(8), "w")
    target.start(pull(source, [0, 1, 2, 3, 8]))
    assert "do not fit" in ended(target).reason


def test_a_revoked_grant_is_unknown(source: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "_PATIENCE_SECONDS", 0.1)
    source.grant(GRANT)
    source.revoke([9, 10])
    target = Importer(cache(8), "w")
    target.start(pull(source, [0, 1, 2, 3, 4]))
    assert "nothing" in ended(target).reason


def test_a_source_that_is_gone_fails_the_pull(
    run_dir: Path, source: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "_PATIENCE_SECONDS", 0.1)
    source.stop()
    target = Importer(cache(8), "w")
    target.start(pull(source, [0, 1, 2, 3, 4]))
    assert "nothing" in ended(target).reason


def test_a_corrupt_block_fails_the_pull(source: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "crc32", lambda data: 7)
    source.grant(GRANT)
    target = Importer(cache(8), "w")
    target.start(pull(source, [0, 1, 2, 3, 4]))
    assert "corrupt" in ended(target).reason


def test_numbers_of_another_kind_fail_the_pull(source: Exporter) -> None:
    source.grant(GRANT)
    target = Importer(cache(8, torch.float16), "w")
    target.start(pull(source, [0, 1, 2, 3, 4]))
    assert "bfloat16" in ended(target).reason


def test_reset_ends_what_runs(source: Exporter) -> None:
    target = Importer(cache(8), "w")
    target.start(pull(source, [0, 1, 2, 3, 4]))
    target.reset()
    assert not target.busy
    assert target.finished() == []
    source.grant(GRANT)
    target.start(pull(source, [0, 1, 2, 3, 4]))
    assert ended(target).reason == ""
