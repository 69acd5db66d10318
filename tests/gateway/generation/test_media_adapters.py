"""Adapters that requests with media have by default."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton.protocol import MediaItem
from baton_gateway.config import media_adapters
from baton_gateway.generation.media_adapters import with_media_adapter
from baton_gateway.generation.request import ChatPrompt
from tests.support.gateway.generation_requests import request_of

CATALOGUE: Any = SimpleNamespace(
    models=["m"],
    get=lambda name: {"speech": SimpleNamespace(parent="m")}.get(name),
)
ADAPTERS = media_adapters('{"audio": "speech", "image": "vision"}')


def _model(*modalities: str, model: str | None = None, catalogue: Any = CATALOGUE) -> str | None:
    media = tuple(MediaItem(modality, "", "") for modality in modalities)
    request = request_of(prompts=(ChatPrompt(b"[]", media=media),), model=model)
    return with_media_adapter(request, ADAPTERS, catalogue).model


@pytest.mark.row("A07", "F01.34")
def test_the_adapter_of_the_media() -> None:
    """Where the request names the model, or nothing; an adapter that is unknown is so for it."""
    assert _model("audio") == _model("audio", "audio", model="m") == "speech"
    assert _model("image_embeds", model="m") == "vision"
    assert _model(model="m") == _model("video", model="m") == "m" and _model() is None
    assert _model("audio", model="other") == "other"
    several = SimpleNamespace(models=["m", "n"], get=CATALOGUE.get)
    assert _model("audio", model="n", catalogue=several) == "n"
    assert _model("audio", catalogue=several) is None
    with pytest.raises(InvalidRequest, match="several adapters: speech, vision"):
        _model("audio", "image", model="m")


def test_settings_that_make_no_sense() -> None:
    assert media_adapters("") == {}
    for text, words in (("[]", "JSON object"), ('{"smell": "x"}', "not 'smell'")):
        with pytest.raises(ValueError, match=words):
            media_adapters(text)
