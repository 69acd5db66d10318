"""Programs of the documentation with a picture or a recording run as they are printed."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.listening import listening
from tests.fakes.whole_system import whole
from tests.support import tiny_audio, tiny_llava
from tests.support.tiny_dual_encoders import picture
from tests.support.tiny_whisper import save_whisper, sound, wav

DOCS = Path(__file__).parents[2] / "docs"
PROGRAM = re.compile(r"```python\n(import .*?|from .*?)```", re.DOTALL)
MODELS: dict[str, Callable[[Path], Any]] = {
    "api/multimodal.md": tiny_llava.save,
    "api/multimodal.md#audio": tiny_audio.save,
    "api/speech.md": save_whisper,
    "api/realtime.md": save_whisper,
}


@pytest.mark.row("F01.01", "F18.18", "F18.20")
@pytest.mark.parametrize("place", MODELS)
def test_programs_of_the_pages_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    page, _, section = place.partition("#")
    found = PROGRAM.findall((DOCS / page).read_text())
    assert len(found) == 1 + (page == "api/multimodal.md")
    program = found[bool(section)]
    model = tmp_path / "model"
    MODELS[place](model)
    write_greedily(model)
    picture(40, 30).save(tmp_path / "photo.jpg")
    (tmp_path / "voice.wav").write_bytes(wav(sound(0.7)))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with whole(model) as here:

        async def run() -> None:
            async with listening(here.app) as at:
                monkeypatch.setenv("OPENAI_BASE_URL", f"http://{at}/v1")
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", program, cwd=tmp_path, stdout=PIPE, stderr=PIPE
                )
                written, complaints = await process.communicate()
            assert process.returncode == 0, complaints.decode()
            assert written.strip()

        here.run(run)


def write_greedily(model: Path) -> None:
    """The programs name no temperature, and a random draw may end an answer before its first
    word."""
    file = model / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"temperature": 0.0}))
