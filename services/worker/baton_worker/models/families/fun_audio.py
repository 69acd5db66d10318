"""Fun-Audio-Chat: Qwen2.5-Omni's encoder of sounds beside an embedding of codes, and Qwen3."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.vision_common import RENAMES, text_model, with_tower
from baton_worker.models.families.windowed_audio import qwen2_5_omni_audio
from baton_worker.spec import Decoder, Dense, FramePool, PadCode, Step

_CODES = "speech_codes"
_UNUSED = ("audio_tower.audio_bos_eos_token.", "audio_invert_tower.")
_OWN = (
    (r"^audio_tower\.", f"{_CODES}."),
    (r"^continuous_audio_tower\.", "audio_tower."),
)
_AUDIO: dict[str, Any] = {
    "codebook_size": 6565,
    "padding_token_id": 6564,
    "group_size": 5,
    "output_dim": 4096,
    "continuous_features_mode": "add",
}


@architecture("FunAudioChatForConditionalGeneration")
def fun_audio_chat(c: Config) -> Decoder:
    """Means of five states are one embedding. A sound that a client sends has no codes of its own:
    as in the published processor, each of its frames has the code of padding. It answers in text;
    the decoder of speech is not read."""
    if getattr(c, "audio_token_index", None) is None and getattr(c, "audio_token_id", None) is None:
        raise AttributeError("audio_token_index, the token in whose place a sound goes")
    a = SimpleNamespace(**_AUDIO | vars(getattr(c, "audio_config", None) or SimpleNamespace()))
    c = SimpleNamespace(**vars(c) | {"audio_config": a})
    tower, decoder = qwen2_5_omni_audio(c), text_model(c, "qwen3")
    if a.output_dim != decoder.hidden:
        raise AttributeError("audio_config.output_dim is not the hidden size of the text model")
    added = a.continuous_features_mode == "add"
    unused = (
        _UNUSED if added else (*_UNUSED, f"{_CODES}.embed_tokens.", f"{_CODES}.output_matching.")
    )
    projector = (*tower.projector, *_groups(a), *((_code(a),) if added else ()))
    tower = replace(tower, projector=projector, droppable=True)
    return with_tower(decoder, tower, (*_OWN, *RENAMES), unused)


def _groups(a: Any) -> tuple[Step, ...]:
    width = a.output_dim
    matching = Dense(f"{_CODES}.continual_output_matching", width, width, bias=False)
    return FramePool(a.group_size, padded=True), matching


def _code(a: Any) -> PadCode:
    """That of padding."""
    named = getattr(a, "pad_token_id", None)
    return PadCode(
        f"{_CODES}.embed_tokens",
        f"{_CODES}.output_matching",
        a.codebook_size,
        a.padding_token_id if named is None else named,
        a.output_dim,
    )
