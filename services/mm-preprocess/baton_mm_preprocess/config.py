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
    """Where the service listens, and its limits for untrusted media."""

    bind: str = setting("", "network", advanced=True)
    """Address to bind; empty means a socket in the run directory."""
    advertise: str = setting("", "network", advanced=True)
    """Address announced to Redis; empty means the bound one."""
    decode_processes: int = setting(2, "limits", advanced=True, ge=1, le=256)
    """Media that are decoded at one time, each in a process of its own."""
    max_queued_requests: int = setting(256, "limits", ge=1)
    """Requests that wait for one of these; more are refused with 503 and Retry-After."""
    allowed_media_domains: str = setting("", "security")
    """Web servers whose media requests may name by URL, separated by commas or as a
    JSON list: example.org, *.example.org, example.org:8443, or * for all of the internet; empty
    means none. Addresses that are not public are never fetched from."""
    max_items: int = setting(16, "limits", ge=1)
    """Media parts of one request."""
    limit_mm_per_prompt: LimitJson = setting("", "limits")
    """The same by modality, as vLLM takes it: '{"image": 8, "audio": 1}'; empty for no other."""
    media_io_kwargs: MediaIoJson = setting("", "model")
    """Frames of every video, before the rule of the model's family: '{"video": {"num_frames": 16}}'
    or '{"video": {"fps": 1}}'."""
    mm_processor_kwargs: ProcessorJson = setting("", "model")
    """Fields of the checkpoint's image and video processors that are set anew, as vLLM takes them:
    '{"max_pixels": 602112}'; apart as '{"images_kwargs": {}, "videos_kwargs": {}}'. With
    "use_audio_in_video": true an omni model hears the sound of videos too, unless a request says
    otherwise."""
    max_media_bytes: int = setting(20 * 1024 * 1024, "limits", ge=1024, le=32 * 1024 * 1024)
    """Largest file of one media part."""
    max_image_pixels: int = setting(50_000_000, "limits", ge=1)
    """Most pixels of an image or of a frame of a video, before it is made smaller."""
    max_video_frames: int = setting(36_000, "limits", ge=1)
    """Most frames in the file of a video, of which a model is shown some."""
    max_video_seconds: float = setting(1200.0, "limits", gt=0)
    """Longest video."""
    max_audio_seconds: float = setting(1800.0, "limits", gt=0)
    """Longest sound; a model may take less of one."""
    max_audio_clip_s: int = setting(0, "model", ge=0, le=3600)
    """Longest part in seconds into which a recording to be transcribed is cut; 0 for as long as the
    model takes."""
    overlap_chunk_second: int = setting(1, "model", advanced=True, ge=0)
    """Seconds before the end of such a part in which the quietest place to cut is looked for."""
    min_energy_split_window_size: int = setting(1600, "model", advanced=True, ge=1)
    """Samples over which loudness is measured for that."""
    media_seconds: float = setting(10.0, "limits", advanced=True, gt=0)
    """Wall time for one media part. What takes more than 2 s begins anew behind the others."""
    media_wait_seconds: float = setting(30.0, "limits", advanced=True, gt=0)
    """How long a media part waits for a process before its request is refused with 503."""
    media_memory: int = setting(384 * 1024 * 1024, "limits", advanced=True, ge=64 * 1024 * 1024)
    """Bytes of address space that one part may take in its process, beside what its libraries
    take."""

    @property
    def kwargs(self) -> ProcessorKwargs:
        """What is set anew in the checkpoint's processors."""
        image, video, sound = processor_kwargs(self.mm_processor_kwargs)
        return ProcessorKwargs(image, video, frames(self.media_io_kwargs), sound)

    @property
    def limits(self) -> dict[str, int]:
        """Most items of one request, by modality."""
        return limits(self.limit_mm_per_prompt)
