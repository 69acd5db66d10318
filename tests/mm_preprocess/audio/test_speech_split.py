"""Recordings are cut where it is quiet."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from baton.errors import SettingsError
from baton_mm_preprocess.audio.audio_input import AudioInput
from baton_mm_preprocess.audio.log_mel_chunks import LogMelChunks
from baton_mm_preprocess.audio.spectrum import LogMel
from baton_mm_preprocess.audio.speech_split import SpeechSplit
from baton_mm_preprocess.config import Config
from baton_mm_preprocess.service import split_of

RATE = 1000


def test_cuts_are_in_the_quietest_window() -> None:
    split = SpeechSplit(
        max_audio_clip_s=4, overlap_chunk_second=2, min_energy_split_window_size=100
    )
    samples = np.ones(9500, np.float32)
    samples[2500:2600] = 0.1
    samples[3300:3400] = 0.01
    samples[1000:1500] = 0.0  # too early
    parts = list(split(samples, RATE))
    starts = [start for start, _ in parts]
    assert all(len(part) >= split.shortest * RATE for _, part in parts[:-1])
    assert starts[:2] == [0, 3300] and all(len(part) <= 4000 for _, part in parts)
    assert (np.concatenate([part for _, part in parts]) == samples).all()
    assert starts == [sum(len(part) for _, part in parts[:n]) for n in range(len(parts))]


def test_short_ones_and_whole_windows() -> None:
    whole = SpeechSplit(max_audio_clip_s=2, overlap_chunk_second=0)
    assert [len(part) for _, part in whole(np.ones(2000, np.float32), RATE)] == [2000]
    assert [len(part) for _, part in whole(np.ones(4500, np.float32), RATE)] == [2000, 2000, 500]


@pytest.mark.row("F20.03")
def test_settings_by_flag_environment_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All three agree, and a value that cannot be is refused by its name."""
    audio = SimpleNamespace(processor=LogMelChunks(LogMel(), 1))

    def split(*flags: str) -> SpeechSplit:
        return split_of(cast(AudioInput, audio), Config.load(flags))

    assert split() == SpeechSplit(30, 1, 1600)
    fields = {"max-audio-clip-s": 20, "overlap-chunk-second": 2}
    fields["min-energy-split-window-size"] = 800
    wanted = SpeechSplit(20, 2, 800)
    assert split(*(f"--{name}={value}" for name, value in fields.items())) == wanted
    file = tmp_path / "baton.yaml"
    sections = [f"  {name}: {value}" for name, value in fields.items()]
    file.write_text("\n".join(("mm-preprocess:", *sections)))
    assert split("--config", str(file)) == wanted
    for name, value in fields.items():
        monkeypatch.setenv(f"BATON_MM_PREPROCESS_{name.upper().replace('-', '_')}", str(value))
    assert split() == wanted
    for flag, name in (
        ("--max-audio-clip-s=31", "max_audio_clip_s"),
        ("--max-audio-clip-s=-1", "--max-audio-clip-s"),
        ("--overlap-chunk-second=20", "overlap_chunk_second"),
        ("--min-energy-split-window-size=0", "--min-energy-split-window-size"),
    ):
        with pytest.raises(SettingsError, match=name):
            split(flag)
