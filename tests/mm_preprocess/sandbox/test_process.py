"""The child process that looks into files, and its pipes."""

from __future__ import annotations

import io
import resource

import msgspec
import numpy as np
import pytest

from baton.net.frames import receive, send
from baton.protocol import Blob
from baton_mm_preprocess.image.processor import read_processor
from baton_mm_preprocess.sandbox import process
from baton_mm_preprocess.sandbox.process import Outcome, Problem, Ready, Setup, serve
from tests.support.tiny_dual_encoders import PROCESSORS, data_url, picture

SETUP = Setup(read_processor(PROCESSORS["SiglipModel"], ""), 10_000, 10_000, 2**30)


def stream_of(*messages: object) -> io.BytesIO:
    stream = io.BytesIO()
    for message in messages:
        send(stream, msgspec.msgpack.encode(message))
    stream.seek(0)
    return stream


def outcome(data: bytes | None) -> Outcome:
    assert data is not None
    return msgspec.msgpack.decode(data, type=Outcome)


def test_an_outcome_for_each_file() -> None:
    image, target = picture(40, 30), io.BytesIO()
    serve(stream_of(data_url(image), "data:image/png;base64,aGk="), target, SETUP)
    target.seek(0)
    ready, problem = outcome(receive(target)), outcome(receive(target))
    assert isinstance(ready, Ready) and ready.tensor.shape == (3, 30, 30)
    found = np.frombuffer(ready.tensor.data, "<f4").reshape(ready.tensor.shape)
    assert np.array_equal(found, SETUP.processor(image))
    assert isinstance(problem, Problem) and problem.code == "invalid_image_format"
    assert receive(target) is None


def test_a_setup_survives_the_pipe() -> None:
    data = receive(stream_of(SETUP))
    assert data is not None and msgspec.msgpack.decode(data, type=Setup) == SETUP


def test_a_digest_is_of_shape_and_content() -> None:
    blobs = [Blob("float32", shape, bytes(24)) for shape in ((3, 2, 1), (3, 1, 2))]
    blobs.append(Blob("float32", (3, 2, 1), bytes(23) + b"\1"))
    assert len({process.digest(blob) for blob in blobs}) == 3
    assert process.digest(blobs[0]) == process.digest(Blob("float32", (3, 2, 1), bytes(24)))


def test_memory_that_runs_out_is_a_large_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def out(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(process, "fetch", out)
    found = process.prepare(data_url(picture(4, 4)), SETUP)
    assert isinstance(found, Problem) and found.code == "image_too_large"


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    process.limit(2**30)
    [most, hard] = limits[resource.RLIMIT_AS]
    assert most == hard and most > 2**30
    assert limits[resource.RLIMIT_CORE] == (0, 0)
