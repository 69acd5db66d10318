"""Vision-language models whose ropes have axes for images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.common import Config, Family, architecture, spelled
from baton_worker.models.families.glm import glm4
from baton_worker.models.families.glm_vision import glm4v_vision, glm_ocr_vision
from baton_worker.models.families.hunyuan_vision import RENAMES as HUNYUAN_RENAMES
from baton_worker.models.families.hunyuan_vision import UNUSED as HUNYUAN_UNUSED
from baton_worker.models.families.hunyuan_vision import hunyuan_vision
from baton_worker.models.families.llama import hunyuan, qwen2, qwen3
from baton_worker.models.families.moe import glm4_moe, qwen3_moe
from baton_worker.models.families.qwen_vision import RENAMES as RENAMES_OF_VISUAL
from baton_worker.models.families.qwen_vision import (
    exaone4_5_vision,
    qwen2_5_omni_vision,
    qwen2_5_vl_vision,
    qwen2_vl_vision,
    qwen3_omni_vision,
    qwen3_vl_vision,
)
from baton_worker.models.families.vision_common import text_model, with_tower
from baton_worker.models.families.windowed_audio import qwen2_5_omni_audio, qwen3_omni_audio
from baton_worker.spec import (
    Attention,
    Decoder,
    Dense,
    Ffn,
    Mixer,
    Moe,
    Sections,
    TowerPair,
    VisionTower,
)

_OMNI = ((r"^thinker\.", ""), *RENAMES_OF_VISUAL)
_SPEECH_OUTPUT = ("talker.", "code2wav.")
"""Prefixes of the tensors of speech output."""
RENAMES = (
    (r"^model\.language_model\.", "model."),
    (r"^language_model\.(model|lm_head)\.", r"\1."),
    (r"^language_model\.", "model."),
)
"""Prefixes of the language model in a checkpoint; the last one of a body saved without its head."""
_OPENCUA = (r"^vision_tower\.", "visual.")
_HYPERCLOVAX = (
    (r"^(model\.)?vision_model\.", "visual."),
    (r"^(model\.)?(vision_)?projector\.", "projector."),
    (r"^model\.language_model\.", "language_model."),
)


@architecture("Qwen2VLForConditionalGeneration")
def qwen2_vl(c: Config) -> Decoder:
    decoder = language_model(c, qwen2, Sections((16, 24, 24)), base=1_000_000.0)
    return _with_vision(decoder, qwen2_vl_vision(c, decoder.hidden))


@architecture("Qwen2_5_VLForConditionalGeneration")
def qwen2_5_vl(c: Config) -> Decoder:
    decoder = language_model(c, qwen2, Sections((16, 24, 24)), base=1_000_000.0)
    return _with_vision(decoder, qwen2_5_vl_vision(c, decoder.hidden))


@architecture("Qwen3VLForConditionalGeneration")
def qwen3_vl(c: Config) -> Decoder:
    sections = Sections((24, 20, 20), "cycled")
    decoder = language_model(c, qwen3, sections, base=500_000.0)
    return _with_vision(decoder, qwen3_vl_vision(c, decoder.hidden))


@architecture("Qwen3VLMoeForConditionalGeneration")
def qwen3_vl_moe(c: Config) -> Decoder:
    """Qwen3-VL's encoder beside Qwen3's experts: published as [in, out], and saved by transformers
    as [out, in]."""
    sections = Sections((24, 20, 20), "cycled")
    decoder = language_model(c, _normed_qwen3_moe, sections, base=500_000.0)
    inputs = (decoder.hidden, text_of(c).moe_intermediate_size)
    rules = zip(decoder.tensors.stacked, inputs, strict=True)
    stacked = tuple(replace(rule, inputs=size) for rule, size in rules)
    decoder = replace(decoder, tensors=replace(decoder.tensors, stacked=stacked))
    return _with_vision(decoder, qwen3_vl_vision(c, decoder.hidden))


def _normed_qwen3_moe(c: Config) -> Decoder:
    """The weights of the chosen experts always sum to one."""
    return qwen3_moe(SimpleNamespace(**vars(c) | {"norm_topk_prob": True}))


@architecture("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration")
def qwen3_omni(c: Config) -> Decoder:
    """The thinker of Qwen3-Omni (arXiv:2509.17765): it sees, hears and writes. What speaks is left
    out."""
    if part := getattr(c, "thinker_config", None):
        c = SimpleNamespace(**vars(part) | {"served_length": getattr(c, "served_length", None)})
    decoder = language_model(c, qwen3_moe, Sections((24, 20, 20), "cycled"), base=1_000_000.0)
    tower = TowerPair(qwen3_omni_vision(c, decoder.hidden), qwen3_omni_audio(c))
    return with_tower(decoder, tower, _OMNI, _SPEECH_OUTPUT)


@architecture(
    "Qwen2_5OmniModel",
    "Qwen2_5OmniForConditionalGeneration",
    "Qwen2_5OmniThinkerForConditionalGeneration",
)
def qwen2_5_omni(c: Config) -> Decoder:
    """The thinker of Qwen2.5-Omni (arXiv:2503.20215): Qwen2.5-VL's encoder, and one of sounds."""
    if part := getattr(c, "thinker_config", None):
        c = SimpleNamespace(**vars(part) | {"served_length": getattr(c, "served_length", None)})
    decoder = language_model(c, qwen2, Sections((16, 24, 24)), base=1_000_000.0)
    tower = TowerPair(qwen2_5_omni_vision(c, decoder.hidden), qwen2_5_omni_audio(c))
    unused = (*_SPEECH_OUTPUT, "token2wav.", "audio_tower.audio_bos_eos_token.")
    return with_tower(decoder, tower, _OMNI, unused)


@architecture("Glm4vForConditionalGeneration")
def glm4v(c: Config) -> Decoder:
    """GLM-4.1V (arXiv:2507.01006)."""
    decoder = language_model(c, glm4, Sections((8, 12, 12)))
    return _with_vision(decoder, glm4v_vision(c, decoder.hidden))


@architecture("Glm46VForConditionalGeneration")
def glm46v(c: Config) -> Decoder:
    """GLM-4.6V, dense (Flash) or with experts."""
    moe = getattr(text_of(c), "model_type", "") == "glm4v_moe_text"
    return glm4v_moe(c) if moe else glm4v(c)


@architecture("Glm4vMoeForConditionalGeneration")
def glm4v_moe(c: Config) -> Decoder:
    """GLM-4.5V and GLM-4.6V (arXiv:2507.01006): GLM-4.1V's encoder beside experts."""
    decoder = language_model(c, _biased_glm4_moe, Sections((8, 12, 12)))
    return _with_vision(decoder, glm4v_vision(c, decoder.hidden, token=151_363))


def _biased_glm4_moe(c: Config) -> Decoder:
    return glm4_moe(with_defaults(c, attention_bias=True))


@architecture("GlmOcrForConditionalGeneration")
def glm_ocr(c: Config) -> Decoder:
    """GLM-OCR: queries and keys of the encoder are normed by head."""
    decoder = glm_ocr_text(c)
    return _with_vision(decoder, glm_ocr_vision(c, decoder.hidden))


def glm_ocr_text(c: Config) -> Decoder:
    """GLM-OCR's language model."""
    return language_model(c, _bare_glm4, Sections((8, 12, 12)))


def _bare_glm4(c: Config) -> Decoder:
    """No biases. The layer behind the last one drafts tokens."""
    c = with_defaults(c, head_dim=c.hidden_size // c.num_attention_heads)
    decoder = glm4(SimpleNamespace(**vars(c) | {"attention_bias": False}))
    unused = (*decoder.tensors.unused, f"model.layers.{c.num_hidden_layers}.")
    return replace(decoder, tensors=replace(decoder.tensors, unused=unused))


@architecture("OpenCUAForConditionalGeneration")
def opencua(c: Config) -> Decoder:
    """Qwen2.5-VL's encoder beside a language model that counts tokens alone (arXiv:2508.09123)."""
    token = getattr(c, "media_placeholder_token_id", 151_664)
    grown = SimpleNamespace(**vars(c) | {"image_token_id": token})
    decoder = text_model(c, "qwen2")
    return with_tower(decoder, qwen2_5_vl_vision(grown, decoder.hidden), (_OPENCUA, *RENAMES))


@architecture("Exaone4_5_ForConditionalGeneration")
def exaone4_5(c: Config) -> Decoder:
    """EXAONE 4.5: Qwen2.5-VL's encoder beside EXAONE 4, which counts tokens alone."""
    defaults = {"image_token_id": 67, "video_token_id": 68}
    c = SimpleNamespace(**defaults | vars(c))
    decoder = text_model(c, "exaone4")
    tower = exaone4_5_vision(c, decoder.hidden)
    return with_tower(decoder, tower, (*RENAMES_OF_VISUAL, *RENAMES), ("mtp.",))


@architecture("HyperCLOVAXVisionV2ForConditionalGeneration", "HCXVisionV2ForCausalLM")
def hyperclovax_vision_v2(c: Config) -> Decoder:
    """HyperCLOVA X SEED Think with images: Qwen2.5-VL's encoder and one more projection, beside a
    language model that counts tokens alone."""
    c = with_defaults(c, image_token_id=128_060, video_token_id=128_061)
    decoder = text_model(c, "hyperclovax", tied=True)
    inner = getattr(c.vision_config, "out_hidden_size", 3584)
    tower = qwen2_5_vl_vision(c, inner)
    last = Dense("projector", inner, decoder.hidden, bias=True)
    tower = replace(tower, projector=(*tower.projector, last), hidden=decoder.hidden)
    return with_tower(decoder, tower, (*_HYPERCLOVAX, *RENAMES))


def _with_vision(decoder: Decoder, tower: VisionTower) -> Decoder:
    return with_tower(decoder, tower, RENAMES_OF_VISUAL)


def with_defaults(c: Config, **fields: Any) -> Config:
    """A config with the fields that it leaves out."""
    values = {name: value for name, value in vars(c).items() if value is not None}
    return SimpleNamespace(**vars(c) | fields | values)


@architecture("HunYuanVLForConditionalGeneration")
def hunyuan_vl(c: Config) -> Decoder:
    """Four axes: position, width, height, image index. Tencent's code has one run of pairs for
    each, called `xdrope_section` in checkpoints; transformers' `mrope_section` has one run of
    channels."""
    text = spelled(text_of(c), head_dim="attention_head_dim")
    is_saved = hasattr(_rope_of(text), "xdrope_section")
    sections = Sections((16,) * 4, "runs" if is_saved else "doubled")
    decoder = language_model(text, hunyuan, sections)
    tower = hunyuan_vision(c, decoder.hidden)
    return with_tower(decoder, tower, HUNYUAN_RENAMES, HUNYUAN_UNUSED)


@architecture("InternS1ProForConditionalGeneration")
def interns1_pro(c: Config) -> Decoder:
    """Qwen3-VL's encoder beside Qwen3's experts, equally many per group, stored as [in, out]; a
    Fourier rope over one axis."""
    spec = language_model(text_of(c), qwen3_moe, None, base=5_000_000.0)
    groups = getattr(text_of(c), "router_n_groups", 0)
    layers = spec.layers
    if groups > 0:
        layers = tuple((mixer, _grouped(ffn, groups)) for mixer, ffn in layers)
    stacked = tuple(replace(rule, transposed=True) for rule in spec.tensors.stacked)
    unused = (*spec.tensors.unused, "time_series.", "model.time_series.")
    tensors = replace(spec.tensors, stacked=stacked, unused=unused)
    decoder_with_vision = replace(spec, layers=layers, tensors=tensors)
    deep = hasattr(c.vision_config, "deepstack_visual_indexes")
    return _with_vision(decoder_with_vision, qwen3_vl_vision(c, spec.hidden, deepstack=deep))


def _grouped(ffn: Ffn | None, groups: int) -> Ffn | None:
    if not isinstance(ffn, Moe):
        return ffn
    return replace(ffn, router=replace(ffn.router, kind="each_group", num_groups=groups))


def language_model(
    c: Config,
    family: Family,
    sections: Sections | None,
    *,
    base: float = 10_000.0,
) -> Decoder:
    """A family's text model of a config, with rope `sections` of the config's sizes, or else of
    these. `base` is the architecture's default."""
    text = text_of(c)
    values: dict[str, Any] = dict(vars(_rope_of(text)))
    candidates = [values.pop(name, None) for name in ("mrope_section", "xdrope_section")]
    if sections is not None and any(candidates):
        sizes: Sequence[int] = candidates[0] or candidates[1]
        sections = replace(sections, sizes=tuple(sizes))
    kinds = [values.pop(name, None) for name in ("rope_type", "type", "mrope_interleaved")]
    kind = next((some for some in kinds[:2] if some), "default")
    values["rope_type"] = {"mrope": "default", "xdrope": "dynamic"}.get(kind, kind)
    values.setdefault("rope_theta", getattr(text, "rope_theta", None) or base)
    turned = {"rope_parameters": SimpleNamespace(**values), "rope_scaling": None}
    spec = family(SimpleNamespace(**vars(text) | turned))
    tensors = replace(spec.tensors, renames=(*RENAMES, *spec.tensors.renames))
    layers = tuple((_sectioned(mixer, sections), ffn) for mixer, ffn in spec.layers)
    return replace(spec, layers=layers, tensors=tensors)


def text_of(c: Config) -> Config:
    """The text config: `text_config`, or the config itself. Weight tying is read from the whole
    config."""
    part = getattr(c, "text_config", None)
    if part is None:
        return c
    outer = {name: value for name, value in vars(c).items() if name != "text_config"}
    tied = {name: value for name, value in outer.items() if name == "tie_word_embeddings"}
    return SimpleNamespace(**outer | vars(part) | tied)


def _rope_of(c: Config) -> Any:
    rope_parameters = getattr(c, "rope_scaling", None) or getattr(c, "rope_parameters", None)
    return rope_parameters or SimpleNamespace()


def _sectioned(mixer: Mixer | None, sections: Sections | None) -> Mixer | None:
    if not isinstance(mixer, Attention):
        return mixer
    assert mixer.rope is not None
    return replace(mixer, rope=replace(mixer.rope, sections=sections))
