"""Settings of the media preprocessor."""

from __future__ import annotations

from baton.settings import Settings, setting
from baton_mm_preprocess.media_settings import (
    LimitJson,
    MediaIoJson,
    ProcessorJson,
    ProcessorKwargs,
    frames,
    limits,
    processor_kwargs,
)


class Config(Settings, prefix="mm-preprocess"):
    """Address of the service, and its limits for untrusted media."""

    bind: str = setting("", "network", advanced=True)
    """Address to bind; empty means a socket in the run directory."""
    advertise: str = setting("", "network", advanced=True)
    """Address announced to Redis; empty means the bound one."""
    decode_processes: int = setting(2, "limits", advanced=True, ge=1, le=256)
    """Media that are decoded concurrently, each in its own process."""
    max_queued_requests: int = setting(256, "limits", ge=1)
    """Maximum waiting requests; more are refused with 503 and Retry-After."""
    allowed_media_domains: str = setting("", "security")
    """Web servers from which media may be fetched by URL, separated by commas or as a JSON list:
    example.org, *.example.org, example.org:8443, or * for the whole internet; empty means none.
    Addresses that are not public are never contacted."""
    max_items: int = setting(16, "limits", ge=1)
    """Maximum media parts of one request."""
    limit_mm_per_prompt: LimitJson = setting("", "limits")
    """Maximum media parts of one request by modality, in vLLM's format: '{"image": 8, "audio": 1}';
    empty leaves only --max-items."""
    media_io_kwargs: MediaIoJson = setting("", "model")
    """Frame sampling of videos, applied before the rule of the model's family: '{"video":
    {"num_frames": 16}}' or '{"video": {"fps": 1}}'."""
    mm_processor_kwargs: ProcessorJson = setting("", "model")
    """Overrides of the checkpoint's image and video processor settings, in vLLM's format:
    '{"max_pixels": 602112}'; separately as '{"images_kwargs": {}, "videos_kwargs": {}}'. With
    "use_audio_in_video": true an omni model also gets the sound of videos, unless a request
    overrides it."""
    max_media_bytes: int = setting(20 * 1024 * 1024, "limits", ge=1024, le=32 * 1024 * 1024)
    """Maximum bytes of one media file."""
    max_image_pixels: int = setting(50_000_000, "limits", ge=1)
    """Maximum pixels of an image or of a video frame, before resizing."""
    max_video_frames: int = setting(36_000, "limits", ge=1)
    """Maximum frames of a video file, of which the model gets a sample."""
    max_video_seconds: float = setting(1200.0, "limits", gt=0)
    """Maximum seconds of a video."""
    max_audio_seconds: float = setting(1800.0, "limits", gt=0)
    """Maximum seconds of a recording; a model may have a lower limit."""
    max_audio_clip_s: int = setting(0, "model", ge=0, le=3600)
    """Maximum seconds of one part into which a recording for transcription is cut; 0 means the
    model's maximum."""
    overlap_chunk_second: int = setting(1, "model", advanced=True, ge=0)
    """Seconds before the end of a part of a recording in which it is cut, at the quietest place."""
    min_energy_split_window_size: int = setting(1600, "model", advanced=True, ge=1)
    """Samples over which loudness is measured to find the place of a cut in a recording."""
    media_seconds: float = setting(10.0, "limits", advanced=True, gt=0)
    """Wall time limit of one media part. After 2 s it is restarted behind the others."""
    media_wait_seconds: float = setting(30.0, "limits", advanced=True, gt=0)
    """How long a media part waits for a process before its request fails with 503."""
    media_memory: int = setting(384 * 1024 * 1024, "limits", advanced=True, ge=64 * 1024 * 1024)
    """Bytes of address space of the process that decodes one media part, in addition to its
    libraries."""

    @property
    def kwargs(self) -> ProcessorKwargs:
        """Overrides of the checkpoint's processors."""
        image, video, sound = processor_kwargs(self.mm_processor_kwargs)
        return ProcessorKwargs(image, video, frames(self.media_io_kwargs), sound)

    @property
    def limits(self) -> dict[str, int]:
        """Maximum items of one request, by modality."""
        return limits(self.limit_mm_per_prompt)
