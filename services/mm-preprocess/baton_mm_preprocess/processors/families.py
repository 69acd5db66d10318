"""Vision-language models by architecture: image processor, image token and placeholder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from baton.errors import ModelError
from baton_mm_preprocess.processors import placeholders
from baton_mm_preprocess.processors.placeholders import Encode, Placeholder
from baton_mm_preprocess.processors.readers.files import Files


@dataclass(frozen=True, slots=True)
class Family:
    """Image input of a family."""

    kind: str
    """Default image processor, a key of `image_processors.READERS`."""
    token: int | str | Callable[[Files], int]
    """Token whose embedding is replaced, if the config names none."""
    placeholder: Placeholder = placeholders.plain
    marker: str = ""
    """Token of the chat template that marks an image; the image token if empty."""
    whatever: bool = False
    """Whether the image processor is always of `kind`, regardless of the files."""
    unmarked: bool = False
    """Whether the image token is the marker if the vocabulary lacks `marker`."""
    names: tuple[str, ...] = ("image_token_id", "image_token_index")
    """Config fields that may name the image token."""
    written: Callable[[Files], Placeholder] | None = None
    """The placeholder of a checkpoint, if it depends on its files."""
    in_code: bool = False
    """Whether the image processor has default settings without a file."""
    bidirectional: bool | Callable[[Files], bool] = False
    """Whether the tokens of an image attend to one another in both directions, run by run."""
    as_one: bool = False
    """Whether all tokens of an image, including its marks, are one such run."""
    whole_prompt: bool = False
    """Whether that run is the prompt, which an image begins (prefix-LM)."""
    cross: bool = False
    """Whether tokens attend to the encoder's states (cross-attention), which replace no
    embeddings."""
    most_images: int = 0
    """Maximum images of a request; 0 for no limit."""

    def image_token(self, files: Files, encode: Encode) -> int:
        """Id of the image token. Raises `ModelError`."""
        for name in self.names:
            for config in (files.config, files.vision):
                if isinstance(value := config.get(name), int):
                    return value
        if callable(self.token):
            return self.token(files)
        return self.token if isinstance(self.token, int) else single(self.token, encode)

    def is_bidirectional(self, files: Files) -> bool:
        """Whether the tokens of an image attend to one another in both directions."""
        return self.bidirectional(files) if callable(self.bidirectional) else self.bidirectional

    def placeholder_of(self, files: Files) -> Placeholder:
        """Placeholder of images in prompts. Raises `ModelError`."""
        try:
            return self.placeholder if self.written is None else self.written(files)
        except KeyError as error:
            raise ModelError(f"its config.json says nothing of {error}") from error

    def marker_token(self, files: Files, encode: Encode) -> int:
        """Id of the marker. Raises `ModelError`."""
        if not self.marker or (self.unmarked and len(encode(self.marker)) != 1):
            return self.image_token(files, encode)
        return single(self.marker, encode)


def single(text: str, encode: Encode) -> int:
    """The id of a text that is one token. Raises `ModelError`."""
    ids = encode(text)
    if len(ids) != 1:
        raise ModelError(f"its tokenizer has no token {text}")
    return ids[0]


_GLM = Family("Glm4vImageProcessor", "<|image|>")
_QWEN = Family("Qwen2VLImageProcessor", "<|image_pad|>")
_HYPERCLOVAX = Family("Qwen2VLImageProcessor", 128_060)
_OMNI = Family("Qwen2VLImageProcessor", "<|IMAGE|>")
_INTERNVL = Family("GotOcr2ImageProcessor", "<IMG_CONTEXT>", placeholders.internvl)
_CHAT = Family(
    "InternVLChat",
    "<IMG_CONTEXT>",
    placeholders.internvl,
    "<image>",
    whatever=True,
    unmarked=True,
)
_MINICPM = Family("MiniCPMVImageProcessor", "<unk>", placeholders.minicpm, "<image>")
_LIGHTON = Family("PixtralImageProcessor", "<|image_pad|>")
_NORMED = Family("LlavaOnevisionImageProcessor", "<image>", whatever=True)
_NEMOTRON = Family(
    "NemotronVL",
    "<image>",
    placeholders.internvl,
    whatever=True,
    names=("img_context_token_id", "image_token_id"),
)
_JANUS = Family("JanusImageProcessor", "<image_placeholder>")
_OCR2 = Family("DeepseekOcr2ImageProcessor", 128_815)
_PHI = Family("Phi4MultimodalImageProcessor", 200_010)
_ERNIE = Family(
    "Ernie4_5_VLMoeImageProcessor",
    100_295,
    marker="<|image@placeholder|>",
    whatever=True,
    unmarked=True,
    names=("image_token_id", "im_patch_id"),
)
_STEP = Family("Step3VL", "<im_patch>", placeholders.step3, whatever=True, in_code=True)
_KIMI = Family(
    "KimiVLImageProcessor", 163_605, names=("media_placeholder_token_id", "image_token_id")
)
_KIMI_K25 = replace(_KIMI, kind="Kimi_K25ImageProcessor")
_KEYE = Family("KeyeImageProcessor", "<|image_pad|>", whatever=True)


def _molmo2(files: Files) -> Placeholder:
    return placeholders.molmo2(files.processor)


def _tarsier(files: Files) -> Placeholder:
    return placeholders.tarsier(files.config["image_newline_idx"], files.config["image_new_idx"])


def _gemma4(files: Files) -> Placeholder:
    begin, end = files.config.get("boi_token_id"), files.config.get("eoi_token_id")
    return placeholders.between(
        255_999 if begin is None else begin, 258_882 if end is None else end
    )


def _sees_both_ways(files: Files) -> bool:
    text = files.config.get("text_config") or {}
    return text.get("use_bidirectional_attention") == "vision"


def _behind_end(files: Files) -> int:
    """The token after the end-of-sequence token."""
    return int(files.config["text_config"]["eos_token_id"]) + 1


def _vila(files: Files) -> Placeholder:
    image_encoder = files.config.get("image_encoder") or {}
    encoder = json.loads(image_encoder) if isinstance(image_encoder, str) else image_encoder
    kind = str(encoder.get("_target_", "BasicImageEncoder")).rpartition(".")[2]
    if kind != "BasicImageEncoder":
        raise ModelError(f"its image_encoder {kind} is unknown")
    start, end = encoder.get("start_tokens"), encoder.get("end_tokens", "\n")
    return placeholders.vila(start or "", end or "")


def _start(files: Files) -> int:
    """The beginning-of-sequence token of an encoder-decoder's decoder."""
    start = files.config.get("decoder_start_token_id")
    return int(files.config["decoder"]["eos_token_id"] if start is None else start)


FAMILIES: dict[str, Family] = {
    "LlavaForConditionalGeneration": Family("CLIPImageProcessor", 32_000, placeholders.llava),
    "Lfm2VlForConditionalGeneration": Family("Lfm2VlImageProcessor", "<image>", placeholders.lfm2),
    "TarsierForConditionalGeneration": Family("CLIPImageProcessor", 32_000, written=_tarsier),
    "AriaForConditionalGeneration": Family("AriaImageProcessor", 9),
    "BeeForConditionalGeneration": _NORMED,
    "Blip2ForConditionalGeneration": Family("BlipImageProcessor", "<image>"),
    "ChameleonForConditionalGeneration": Family(
        "ChameleonImageProcessor", "<image>", placeholders.chameleon
    ),
    "RForConditionalGeneration": _NORMED,
    "KeyeForConditionalGeneration": _KEYE,
    "KeyeVL1_5ForConditionalGeneration": _KEYE,
    "HunYuanVLForConditionalGeneration": Family("HunYuanVLImageProcessor", 120_120),
    "DeepseekOCRForCausalLM": Family("DeepseekOCR", "<image>", whatever=True),
    "DeepseekOCR2ForCausalLM": replace(_OCR2, token="<image>", whatever=True),
    "DeepseekOcr2ForConditionalGeneration": _OCR2,
    "Llama_Nemotron_Nano_VL": _NEMOTRON,
    "NemotronH_Nano_VL_V2": _NEMOTRON,
    "Molmo2ForConditionalGeneration": Family(
        "Molmo2ImageProcessor",
        "<im_patch>",
        marker="<|image|>",
        names=("image_patch_id",),
        written=_molmo2,
        bidirectional=True,
        as_one=True,
        # Its images attend to one another, the first one to the last, which a prefix cache cannot
        # support.
        most_images=1,
    ),
    "Phi4MMForCausalLM": _PHI,
    "Phi4MultimodalForCausalLM": _PHI,
    "DotsOCRForCausalLM": Family("Qwen2VLImageProcessor", "<|imgpad|>"),
    "VipLlavaForConditionalGeneration": Family("CLIPImageProcessor", 32_000),
    "DeepseekVLForConditionalGeneration": _JANUS,
    "JanusForConditionalGeneration": replace(_JANUS, placeholder=placeholders.janus),
    "QianfanOCRForConditionalGeneration": replace(_INTERNVL, marker="<image>", unmarked=True),
    "Exaone4_5_ForConditionalGeneration": _QWEN,
    "VideoLlama3ForConditionalGeneration": Family("VideoLlama3ImageProcessor", 151_655),
    "HyperCLOVAXVisionV2ForConditionalGeneration": _HYPERCLOVAX,
    "HCXVisionV2ForCausalLM": _HYPERCLOVAX,
    "LlavaNextForConditionalGeneration": Family("LlavaNextImageProcessor", 32_000),
    "LlavaNextVideoForConditionalGeneration": Family("LlavaNextImageProcessor", 32_001),
    "LlavaOnevisionForConditionalGeneration": Family("LlavaOnevisionImageProcessor", "<image>"),
    "Qwen2VLForConditionalGeneration": _QWEN,
    "JinaVLForRanking": _QWEN,
    "Qwen2_5_VLForConditionalGeneration": _QWEN,
    "Qwen3VLForConditionalGeneration": _QWEN,
    "Qwen3VLMoeForConditionalGeneration": _QWEN,
    "Qwen2_5OmniModel": _OMNI,
    "Qwen2_5OmniForConditionalGeneration": _OMNI,
    "Qwen2_5OmniThinkerForConditionalGeneration": _OMNI,
    "Qwen3OmniMoeForConditionalGeneration": _QWEN,
    "Qwen3OmniMoeThinkerForConditionalGeneration": _QWEN,
    "Qwen3_5ForConditionalGeneration": _QWEN,
    "Qwen3_5MoeForConditionalGeneration": _QWEN,
    "Ernie4_5_VLMoeForConditionalGeneration": _ERNIE,
    "Ernie4_5_VL_MoeForConditionalGeneration": _ERNIE,
    "Ernie4_5_VLForConditionalGeneration": _ERNIE,
    "IsaacForConditionalGeneration": Family(
        "Isaac", "<|image_pad|>", marker="<image>", whatever=True, unmarked=True, in_code=True
    ),
    "QwenVLForConditionalGeneration": Family(
        "QwenVL", "<imgpad>", placeholders.qwen_vl, whatever=True, in_code=True
    ),
    "OpenPanguVLForConditionalGeneration": Family("OpenPanguVL", "[unused19]", whatever=True),
    "Step3VLForConditionalGeneration": _STEP,
    "StepVLForConditionalGeneration": replace(_STEP, kind="StepVL"),
    "Step3p7ForConditionalGeneration": replace(_STEP, kind="StepVL"),
    "PaddleOCRVLForConditionalGeneration": Family(
        "PaddleOCRVLImageProcessor", "<|IMAGE_PLACEHOLDER|>"
    ),
    "Glm4vForConditionalGeneration": _GLM,
    "Glm4vMoeForConditionalGeneration": _GLM,
    "Glm46VForConditionalGeneration": _GLM,
    "GlmOcrForConditionalGeneration": _GLM,
    "PaliGemmaForConditionalGeneration": Family(
        "SiglipImageProcessor",
        256_000,
        bidirectional=True,
        as_one=True,
        whole_prompt=True,
        most_images=1,
    ),
    "Gemma3ForConditionalGeneration": Family(
        "Gemma3ImageProcessor",
        "<image_soft_token>",
        placeholders.gemma3,
        "<start_of_image>",
        bidirectional=True,
    ),
    "Gemma3nForConditionalGeneration": Family(
        "Gemma3n", "<image_soft_token>", placeholders.gemma3n, whatever=True
    ),
    "Gemma4ForConditionalGeneration": Family(
        "Gemma4ImageProcessor", 258_880, written=_gemma4, bidirectional=_sees_both_ways
    ),
    "Idefics3ForConditionalGeneration": Family(
        "Idefics3ImageProcessor", "<image>", placeholders.idefics3
    ),
    "SmolVLMForConditionalGeneration": Family(
        "SmolVLMImageProcessor", "<image>", placeholders.idefics3
    ),
    "GotOcr2ForConditionalGeneration": Family(
        "GotOcr2", "<imgpad>", placeholders.internvl, whatever=True
    ),
    "InternVLForConditionalGeneration": _INTERNVL,
    "PixtralForConditionalGeneration": Family(
        "PixtralImageProcessor", "[IMG]", placeholders.pixtral
    ),
    "Mistral3ForConditionalGeneration": Family(
        "PixtralImageProcessor", "[IMG]", placeholders.pixtral
    ),
    "InternS1ForConditionalGeneration": _INTERNVL,
    "InternS1ProForConditionalGeneration": Family("Qwen2VLImageProcessor", "<IMG_CONTEXT>"),
    "InternVLChatModel": _CHAT,
    "SkyworkR1VChatModel": _CHAT,
    "Ovis": Family(
        "Ovis", "<|image_pad|>", placeholders.ovis2, "<image>", whatever=True, unmarked=True
    ),
    "Ovis2_5": Family(
        "Ovis2_5", "<|image_pad|>", placeholders.ends, "<image>", whatever=True, unmarked=True
    ),
    "MiniMaxVL01ForConditionalGeneration": Family("MiniMaxVL01", "<image>", whatever=True),
    "HCXVisionForCausalLM": Family(
        "HyperCLOVAX", 100_009, whatever=True, names=("image_token_id", "img_start_id")
    ),
    "KananaVForConditionalGeneration": Family(
        "KananaVImageProcessor", _behind_end, placeholders.kanana, whatever=True
    ),
    "LlavaLlamaModel": Family("VILA", "<image>", whatever=True, written=_vila),
    "NemotronParseForConditionalGeneration": Family(
        "NemotronParse",
        _start,
        placeholders.single,
        whatever=True,
        names=(),
        in_code=True,
        cross=True,
        most_images=1,
    ),
    "H2OVLChatModel": replace(_CHAT, kind="H2OVLChat"),
    "MiniCPMV": _MINICPM,
    "MiniCPMO": _MINICPM,
    "DeepseekVLV2ForCausalLM": Family("DeepseekVLV2Processor", "<image>", whatever=True),
    "Cohere2VisionForConditionalGeneration": Family(
        "Cohere2VisionImageProcessor", "<|IMG_PATCH|>", placeholders.cohere2
    ),
    "Llama4ForConditionalGeneration": Family(
        "Llama4ImageProcessor", 200_092, placeholders.llama4, "<|image|>"
    ),
    "Ovis2ForConditionalGeneration": Family(
        "Ovis2ImageProcessor", "<IMG_ATOM>", placeholders.ovis2, "<image>"
    ),
    "LightOnOCRForConditionalGeneration": _LIGHTON,
    "LightOnOcrForConditionalGeneration": _LIGHTON,
    "KimiVLForConditionalGeneration": _KIMI,
    "KimiK25ForConditionalGeneration": _KIMI_K25,
    "Kimi_K25ForConditionalGeneration": _KIMI_K25,
    "OpenCUAForConditionalGeneration": Family(
        "Qwen2VLImageProcessor", "<|media_placeholder|>", names=("media_placeholder_token_id",)
    ),
    "MllamaForConditionalGeneration": Family(
        "MllamaImageProcessor", "<|image|>", placeholders.single, cross=True
    ),
    "AyaVisionForConditionalGeneration": Family(
        "GotOcr2ImageProcessor", "<|IMG_PATCH|>", placeholders.aya, "<image>"
    ),
}
"""Family by the architecture's name in config.json."""
