"""Media support of a model, read from its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from baton.checkpoint.gguf_projector import read_projector
from baton.checkpoint.hub import CONFIGS
from baton.checkpoint.json_file import read_json, readable_fields
from baton.checkpoint.part_folders import part_configs, vision_folder
from baton.errors import InvalidRequest, ModelError
from baton.protocol import MediaItem
from baton.protocol.media import Span
from baton_mm_preprocess.audio.audio_input import AudioInput, read_audio
from baton_mm_preprocess.audio.families import AUDIO_FAMILIES
from baton_mm_preprocess.image.processor import read_processor
from baton_mm_preprocess.media_settings import ProcessorKwargs
from baton_mm_preprocess.processors.any_processor import Processor
from baton_mm_preprocess.processors.families import FAMILIES
from baton_mm_preprocess.processors.fixed_size import FixedSize
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.placeholders import (
    Placeholder,
    plain,
    runs,
    takes_embeds,
    token_ids,
)
from baton_mm_preprocess.processors.processed_image import Grid
from baton_mm_preprocess.processors.readers.files import Files
from baton_mm_preprocess.tokenizer import encode
from baton_mm_preprocess.video.clip_sound import ClipSound
from baton_mm_preprocess.video.families import VIDEO_FAMILIES, VideoFamily
from baton_mm_preprocess.video.placeholders import ClipPlaceholder
from baton_mm_preprocess.video.processed_clip import ClipTimes
from baton_mm_preprocess.video.readers import VideoProcessor, video_processor_of

MODALITIES = ("image", "video", "audio")
_PLURALS = {"image": "images", "video": "videos", "audio": "audio"}
_KEYS = {
    "image": ("vision_config", "vision_tower", "mm_vision_tower", "image_token_id"),
    "video": ("video_token_id", "video_token_index"),
    "audio": ("audio_config", "audio_encoder_config", "audio_token_id", "num_mel_bins"),
}
"""Keys of config.json that indicate an encoder."""
_NESTED = ("thinker_config",)
"""Keys under which omni models nest the configuration of their encoders."""
_FILES = ("preprocessor_config.json", "processor_config.json")
"""Files with image processor settings; the second has other settings too."""
_NONE = ProcessorKwargs()
_VIDEO_FILE = "video_preprocessor_config.json"
"""File with video processor settings, unless the second file above contains them."""


@dataclass(frozen=True, slots=True)
class VisionSizes:
    """An embedding model that splits images of one size into square patches."""

    kind: str
    """Default image processor."""
    size: int
    """Default side of a patch in pixels."""
    extra: int = 0
    """Tokens in addition to the patches."""


SQUARES = {
    "CLIPModel": VisionSizes("CLIPImageProcessor", 32, extra=1),
    "SiglipModel": VisionSizes("SiglipImageProcessor", 16),
}
"""Embedding models, whose images are prompts by themselves."""


@dataclass(frozen=True)
class Images:
    """Image preprocessing of a model."""

    processor: Processor
    marker: int = -1
    """Token of the chat template that marks an image; -1 if an image is a prompt by itself."""
    image_token: int = 0
    """Token whose embedding is replaced."""
    placeholder: Placeholder = plain
    folder: Path = Path()
    """Checkpoint folder, for the tokenizer."""
    bidirectional: bool = False
    """Whether the tokens of an image attend to one another in both directions."""
    as_one: bool = False
    """Whether all of `tokens` do, instead of the image tokens only."""
    cross: bool = False
    """Whether tokens attend to the encoder's states (cross-attention), which replace no
    embeddings."""
    most_images: int = 0
    """Maximum images of a request; 0 for no limit."""
    embeds_width: int = 0
    """Size of an embedding that a client may send; 0 if it may send none."""
    whole_prompt: bool = False
    """As of `PreparedMedia`."""

    def tokens(self, grid: Grid, num_tokens: int, number: int = 0) -> list[int]:
        """Placeholder ids of an image; unused for an image that is a prompt by itself. `number` is
        that of the image in its conversation."""
        pieces = self.placeholder(self.processor, grid, num_tokens)
        return token_ids(pieces, self.image_token, partial(encode, self.folder), number)

    def spans(self, tokens: list[int]) -> tuple[Span, ...]:
        """Ranges of these tokens that attend to one another in both directions: each run of image
        tokens."""
        if self.as_one:
            return ((0, len(tokens)),)
        return tuple(runs(tokens, self.image_token)) if self.bidirectional else ()


@dataclass(frozen=True)
class Videos:
    """Video preprocessing of a model."""

    processor: VideoProcessor
    marker: int
    """Token of the chat template that marks a clip."""
    video_token: int
    """Token whose embedding is replaced."""
    placeholder: ClipPlaceholder
    folder: Path
    """Checkpoint folder, for the tokenizer."""
    sound: ClipSound | None = None
    """How the sound of a clip is interleaved with its tokens; None if the model cannot combine
    them."""

    def tokens(self, grid: Grid, num_tokens: int, times: ClipTimes) -> list[int]:
        """Placeholder ids of a clip."""
        pieces = self.placeholder(self.processor, grid, num_tokens, times)
        return token_ids(pieces, self.video_token, partial(encode, self.folder))


@dataclass(frozen=True)
class Model:
    """Media properties of a model."""

    name: str
    """Name under which it is served."""
    architecture: str
    """First entry of `architectures` in config.json, or "GGUF"."""
    modalities: tuple[str, ...] = ()
    """Subset of `MODALITIES`; empty for a text-only model."""
    images: Images | None = None
    """Image preprocessing; None if images are not supported."""
    videos: Videos | None = None
    """Clip preprocessing; None if clips are not supported."""
    audio: AudioInput | None = None
    """Audio preprocessing; None if sounds are not supported."""
    troubles: Mapping[str, str] = field(default_factory=dict)
    """Why modalities are not supported although the architecture accepts them."""
    sound: bool = False
    """Whether the sound of clips is passed to the model too, if a request does not set it."""
    identity: bytes = b""
    """Hash of the model's configuration, its revision and its processors, if it takes files."""

    @property
    def takes_files(self) -> bool:
        """Whether any media are supported."""
        return self.images is not None or self.audio is not None

    @property
    def why_no_sound(self) -> str:
        """Why the model does not get the sound of videos, as half a sentence."""
        reason = self.troubles.get("audio") or self.troubles.get("sound")
        return reason or "its family never takes both as one"

    def check(self, item: MediaItem) -> None:
        """Raise `InvalidRequest` if this media item cannot be served."""
        if message := self._refusal(item.modality, item.modality.removesuffix("_embeds")):
            raise InvalidRequest(message, code="unsupported_value", param=item.param)
        if item.modality == "video" and item.sound:
            self._check_sound()

    def wants_sound(self, item: MediaItem) -> bool:
        """Whether the sound of a clip, if any, is passed to the model."""
        return item.modality == "video" and (self.sound if item.sound is None else item.sound)

    def _check_sound(self) -> None:
        if self.videos is None or self.videos.sound is None or self.audio is None:
            raise InvalidRequest(
                f"The model {self.name} does not hear the sound of videos: {self.why_no_sound}. "
                "Leave 'use_audio_in_video' out.",
                code="unsupported_value",
                param="mm_processor_kwargs",
            )

    def _refusal(self, modality: str, kind: str) -> str:
        """Reason why an item of a modality, which is `kind` or embeddings of it, cannot be
        served."""
        inputs = {"image": self.images, "video": self.videos, "audio": self.audio}
        if trouble := self.troubles.get(kind):
            return f"The model {self.name} cannot take {_PLURALS[kind]} as it is: {trouble}."
        if kind not in self.modalities:
            takes = f"It takes text and {', '.join(self.modalities)}." if self.modalities else ""
            reason = takes or "It takes text only."
            return f"The model {self.name} does not take {modality} input. {reason}"
        if inputs[kind] is None:
            return (
                f"The model {self.name} takes {modality} input, but Baton does not support "
                f"media for the architecture {self.architecture} yet. Send text only."
            )
        if modality == "image_embeds" and self.images is not None and not self.images.embeds_width:
            return (
                f"The model {self.name} does not take embeddings of images: the positions or the "
                "tokens of an image follow from its size, which embeddings do not have. Send the "
                "image."
            )
        return ""


def read_model(path: Path, name: str, kwargs: ProcessorKwargs = _NONE) -> Model:
    """The model at `path`, a folder with config.json or a GGUF file. Raises `ModelError`.

    llama.cpp stores the encoder of a GGUF file beside it, see `gguf_projector`.
    """
    if path.is_file():
        return _read_gguf(path, name, kwargs)
    if not (path / CONFIGS[0]).is_file() and (path / CONFIGS[1]).is_file():
        return Model(name, "Mistral's format")  # Its images are not encoded.
    with readable_fields(f"the configs in {path}"):
        return _read_folder(path, name, kwargs)


def _read_gguf(path: Path, name: str, kwargs: ProcessorKwargs) -> Model:
    try:
        projector = read_projector(path)
    except ModelError as error:
        return Model(name, "GGUF", ("image",), troubles={"image": error.message})
    if projector is None:
        return Model(name, "GGUF")
    text = projector.config.get("text_config", {})
    config = {**projector.config, "text_config": {**text, "hidden_size": projector.width}}
    model = _with_images(Model(name, projector.architecture), path, config, kwargs)
    digest = sha256(f"{path.name}\0{projector.path.name}\0".encode())
    digest.update(msgspec.json.encode((config, projector.image_processor), order="sorted"))
    return replace(model, identity=digest.digest())


def _read_folder(path: Path, name: str, kwargs: ProcessorKwargs) -> Model:
    config = {**_unnested(read_json(path / CONFIGS[0], name)), **part_configs(path)}
    architecture = str((config.get("architectures") or ["unknown"])[0])
    if not {architecture} & (SQUARES.keys() | FAMILIES.keys() | AUDIO_FAMILIES.keys()):
        return Model(name, architecture, modalities(config))
    model = _with_images(Model(name, architecture), path, config, kwargs)
    model = _with_audio(_with_videos(model, path, config, kwargs), path, config)
    model = _with_sound(model, path, config, heard=kwargs.sound)
    return replace(model, identity=_identity(path)) if model.takes_files else model


def _with_images(
    model: Model, path: Path, config: Mapping[str, Any], kwargs: ProcessorKwargs
) -> Model:
    """Add image support to the model, if it accepts images."""
    if model.architecture not in SQUARES and model.architecture not in FAMILIES:
        return model
    try:
        images = _images(path, model.name, config, model.architecture, kwargs)
    except ModelError as error:
        return replace(model, modalities=("image",), troubles={"image": error.message})
    return replace(model, modalities=("image",), images=images)


def _with_videos(
    model: Model, path: Path, config: Mapping[str, Any], kwargs: ProcessorKwargs
) -> Model:
    """Add clip support to the model, if it accepts images and its family accepts clips."""
    family = VIDEO_FAMILIES.get(model.architecture)
    if family is None or model.images is None:
        return model
    try:
        videos = _videos(path, model.name, config, family, kwargs)
    except ModelError as error:
        return replace(model, troubles={**model.troubles, "video": error.message})
    return replace(model, modalities=(*model.modalities, "video"), videos=videos)


def _with_audio(model: Model, path: Path, config: Mapping[str, Any]) -> Model:
    """Add audio support to the model, if its family accepts sounds."""
    family = AUDIO_FAMILIES.get(model.architecture)
    if family is None:
        return model
    modalities = (*model.modalities, "audio")
    try:
        audio = read_audio(path, model.name, config, family)
    except ModelError as error:
        troubles = {**model.troubles, "audio": error.message}
        return replace(model, modalities=modalities, troubles=troubles)
    return replace(model, modalities=modalities, audio=audio)


def _with_sound(model: Model, path: Path, config: Mapping[str, Any], *, heard: bool) -> Model:
    """Add the combination of clips and their sound, if the model supports it. Raises `ModelError`
    if it does not although sound is requested by the settings."""
    family, videos, audio = VIDEO_FAMILIES.get(model.architecture), model.videos, model.audio
    if family is not None and family.sound is not None and videos and audio:
        spell = partial(encode, path)
        try:
            sound = family.sound.read(config, videos.video_token, audio.audio_token, spell)
        except ModelError as error:
            model = replace(model, troubles={**model.troubles, "sound": error.message})
        else:
            return replace(model, videos=replace(videos, sound=sound), sound=heard)
    if heard:
        raise ModelError(
            f"The model {model.name} does not hear the sound of videos: {model.why_no_sound}. "
            "Leave use_audio_in_video out of BATON_MM_PREPROCESS_MM_PROCESSOR_KWARGS."
        )
    return model


def _videos(
    path: Path,
    name: str,
    config: Mapping[str, Any],
    family: VideoFamily,
    kwargs: ProcessorKwargs,
) -> Videos:
    files, spell = _files(path, name, config), partial(encode, path)
    settings = files.processor.get("video_processor")
    file = path / _VIDEO_FILE
    if settings is None:  # Older checkpoints have no such file; that of images has the sizes.
        settings = read_json(file, name) if file.is_file() else _without_kind(files.image)
    return Videos(
        video_processor_of(files, {**settings, **kwargs.video}, family.kind, kwargs.frames),
        family.marker_token(files, spell),
        family.video_token(files, spell),
        family.placeholder,
        path,
    )


def _without_kind(image: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of an image processor that are shared with the video processor."""
    return {key: value for key, value in image.items() if not key.endswith("_processor_type")}


def modalities(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Modalities in a configuration, in the order of `MODALITIES`."""
    fields = _unnested(config)
    return tuple(
        kind for kind in MODALITIES if any(fields.get(key) is not None for key in _KEYS[kind])
    )


def _unnested(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A configuration merged with the nested one of an omni model's encoders."""
    parts = [config[key] for key in _NESTED if isinstance(config.get(key), dict)]
    return {key: value for part in (config, *parts) for key, value in part.items()}


def _images(
    path: Path, name: str, config: Mapping[str, Any], architecture: str, kwargs: ProcessorKwargs
) -> Images:
    """Raises `ModelError`, with half a sentence, if files are missing or contradict each other."""
    if architecture in SQUARES:
        return _alone(path, name, config, SQUARES[architecture], kwargs)
    family = FAMILIES[architecture]
    files = _files(path, name, config, kwargs, in_code=family.in_code)
    spell = partial(encode, path)
    processor = processor_of(files, family.kind, whatever=family.whatever)
    placeholder = family.placeholder_of(files)
    return Images(
        processor,
        family.marker_token(files, spell),
        family.image_token(files, spell),
        placeholder,
        path,
        family.is_bidirectional(files),
        family.as_one,
        family.cross,
        family.most_images,
        _hidden_size(config) if takes_embeds(processor, placeholder) else 0,
        family.whole_prompt,
    )


def _hidden_size(config: Mapping[str, Any]) -> int:
    """Hidden size of the language model; 0 if the config does not have it."""
    text = config.get("text_config") or {}
    return int(text.get("hidden_size") or config.get("hidden_size") or 0)


def _files(
    path: Path,
    name: str,
    config: Mapping[str, Any],
    kwargs: ProcessorKwargs = _NONE,
    *,
    in_code: bool = False,
) -> Files:
    beside = path / _FILES[1]
    more = read_json(beside, name) if beside.is_file() else {}
    bare = in_code and not any((path / file).is_file() for file in _FILES)
    return Files(config, {**({} if bare else _processing(path, name)), **kwargs.image}, more)


def _alone(
    path: Path,
    name: str,
    config: Mapping[str, Any],
    squares: VisionSizes,
    kwargs: ProcessorKwargs,
) -> Images:
    """Image support of an embedding model."""
    steps = read_processor({**_processing(path, name), **kwargs.image}, squares.kind)
    configs = (config.get("vision_config"), config.get("vision_config_dict"))
    vision = {key: value for part in configs if part for key, value in part.items()}
    side, square = vision.get("image_size", 224), vision.get("patch_size", squares.size)
    if steps.shape != (side, side):
        raise ModelError(
            f"its image processor makes images of {steps.shape or 'any size'}, and its config "
            f"wants {(side, side)}"
        )
    processor = FixedSize(steps, (side // square) ** 2 + squares.extra)
    return Images(processor, folder=path)


def _identity(path: Path) -> bytes:
    """Hash of everything but the file that determines the tensors. The last part of the path is the
    revision of a hub model."""
    digest = sha256(path.name.encode())
    folder = vision_folder(path)
    for file in (path / "config.json", *(folder / name for name in (*_FILES, _VIDEO_FILE))):
        content = file.read_bytes() if file.is_file() else b""
        digest.update(b"%d:%b" % (len(content), content))
    return digest.digest()


def _processing(path: Path, name: str) -> Mapping[str, Any]:
    """Image processor settings of a checkpoint."""
    if path.is_file() and (projector := read_projector(path)) is not None:
        return projector.image_processor
    folder = vision_folder(path)
    for file in _FILES:
        if (folder / file).is_file():
            settings = read_json(folder / file, name)
            return settings.get("image_processor") or settings
    raise ModelError(f"it has no {_FILES[0]}")
