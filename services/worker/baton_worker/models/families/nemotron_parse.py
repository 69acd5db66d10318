"""Nemotron Parse: a page through RADIO (arXiv:2312.06709) and a decoder without positions, each
layer of which attends to the page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.encoder_decoder import (
    embedding_scale,
    paired_decoder,
    paired_renames,
)
from baton_worker.models.families.nemotron_vision import radio
from baton_worker.models.families.vision_common import with_tower
from baton_worker.spec import Decoder, Embedding, Norm, SummaryNeck, VisionTower

_NECK = 1024
"""Channels of a vector of the page."""
_RADIO = "vision_model.radio_model"
_UNUSED = ("decoder.embed_positions.", f"{_RADIO}.input_conditioner.", f"{_RADIO}.summary_idxs")


@architecture("NemotronParseForConditionalGeneration")
def nemotron_parse(c: Config) -> Decoder:
    """The token that begins a prompt stands for the page."""
    d = c.decoder
    length = getattr(c, "max_sequence_length", None) or d.max_position_embeddings
    embedding = Embedding(scale=embedding_scale(d), norm=Norm(1e-5, "layer", bias=True))
    text = paired_decoder(
        d,
        "decoder",
        length,
        _NECK,
        "lm_head",
        served_length=getattr(c, "served_length", None),
        embedding=embedding,
    )
    renames = (
        (r"^encoder\.model_encoder\.", "vision_model."),
        *paired_renames("decoder", d.decoder_layers),
    )
    return with_tower(text, _tower(c, d), renames, _UNUSED)


def _tower(c: Config, d: Any) -> VisionTower:
    """All states of RADIO, its class tokens included, through the neck."""
    encoder = c.encoder
    stack = radio(
        SimpleNamespace(
            vision_config=encoder, force_image_size=max(c.image_size), patch_size=encoder.patch_size
        )
    )
    teachers = encoder.args.teachers
    summaries = tuple(n for n, one in enumerate(teachers) if getattr(one, "use_summary", True))
    neck = SummaryNeck("encoder", stack.hidden, _NECK, stack.patches.leading, summaries)
    start = getattr(c, "decoder_start_token_id", None)
    return VisionTower(
        stack=stack,
        projector=(neck,),
        image_token=d.eos_token_id if start is None else start,
        hidden=_NECK,
        cross=True,
    )
