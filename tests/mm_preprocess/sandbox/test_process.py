"""The child process that looks into files, and what it answers."""

from __future__ import annotations

import resource

import msgspec
import numpy as np
import pytest

from baton_mm_preprocess.audio.decode import AudioLimits
from baton_mm_preprocess.audio.log_mel_chunks import LogMelChunks
from baton_mm_preprocess.audio.spectrum import LogMel
from baton_mm_preprocess.audio.speech_split import SpeechSplit
from baton_mm_preprocess.image.processor import read_processor
from baton_mm_preprocess.processors.fixed_size import FixedSize
from baton_mm_preprocess.sandbox import process
from baton_mm_preprocess.sandbox.process import AudioSetup, Outcome, Problem, Ready, Setup, Source
from tests.support.sounds import data_url as audio_url
from tests.support.sounds import encoded, tones
from tests.support.tiny_dual_encoders import PROCESSORS, data_url, picture

SETUP = Setup(FixedSize(read_processor(PROCESSORS["SiglipModel"], ""), 16), 10_000, 10_000, 2**30)


def outcome(data: bytes) -> Outcome:
    return msgspec.msgpack.decode(data, type=Outcome)


def test_an_outcome_for_each_file_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    handle, image = process.build(msgspec.msgpack.encode(SETUP)), picture(40, 30)
    assert limits[resource.RLIMIT_AS][0] > SETUP.memory
    urls = (data_url(image), "data:image/png;base64,aGk=")
    ready, problem = (outcome(handle(msgspec.msgpack.encode(Source(url)))) for url in urls)
    assert isinstance(ready, Ready) and ready.tensor.shape == (3, 30, 30)
    found = np.frombuffer(ready.tensor.data, "<f4").reshape(ready.tensor.shape)
    assert np.array_equal(found, SETUP.processor(image).pixels)
    assert (ready.grid, ready.num_tokens) == ((1, 1, 1), 16)
    assert isinstance(problem, Problem) and problem.code == "invalid_image_format"


def test_a_digest_is_of_the_file_the_processor_and_the_model() -> None:
    other = FixedSize(read_processor(PROCESSORS["CLIPModel"], ""), 50)
    ways = [(SETUP.processor, b""), (other, b""), (SETUP.processor, b"m")]
    found = [process.digest(data, way) for data in (b"a", b"b") for way in ways]
    assert len(set(found)) == 6 and {len(one) for one in found} == {32}


def test_memory_that_runs_out_is_a_large_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def out(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(process, "fetch", out)
    found = process.prepare(Source(data_url(picture(4, 4))), SETUP)
    assert isinstance(found, Problem) and found.code == "image_too_large"


def test_a_sound_and_its_limits() -> None:
    """Its features, and for one with too many bytes the status of OpenAI's API."""
    chunks = LogMelChunks(LogMel(16), 2, max_chunks=1)
    audio = AudioSetup(chunks, AudioLimits(5.0), SpeechSplit(30))
    setup = Setup(None, 100_000, 0, 2**30, audio=audio)
    file = encoded(tones(1.0))
    found = process.prepare(Source(audio_url(file), "audio"), setup)
    assert isinstance(found, Ready) and found.grid == (1, 100, 0) and found.num_tokens == 25
    assert found.tensor.shape == (1, 16, 102) and found.digest == process.digest(
        file, (chunks, b"")
    )
    for url, code, status in (
        (audio_url(encoded(tones(4.0))), "audio_too_large", 413),
        (audio_url(encoded(tones(6.0), codec="pcm_u8")), "audio_too_large", 400),
        (audio_url(encoded(tones(0.05))), "audio_too_short", 400),
        (data_url(picture(4, 4)), "invalid_base64_audio", 400),
    ):
        problem = process.prepare(Source(url, "audio"), setup)
        assert isinstance(problem, Problem) and (problem.code, problem.status) == (code, status)
