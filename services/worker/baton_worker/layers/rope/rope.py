"""Rotary position embedding: a table of frequency functions and an in-place rotation.

Every function in `FREQUENCIES` follows the one of the same name in
`transformers.modeling_rope_utils` and is tested against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from baton.errors import ModelError
from baton_worker import spec
from baton_worker.kernels import triton
from baton_worker.kernels.rope import CpuAngles, refuses
from baton_worker.kernels.rope import rotate_ as on_cpu
from baton_worker.layers.rope.mrope import axes_of

Frequencies: TypeAlias = tuple[Tensor, float]
"""Inverse frequencies, float32 [dim / 2], and the factor on cos and sin."""


@dataclass(frozen=True, slots=True)
class Angles:
    """The rotation of each token of a step: cos and signed sin, both [T, 1, dim], or [T, num_heads,
    dim] if it differs by head."""

    cos: Tensor
    sin: Tensor
    interleaved: bool = False

    def laid_out(self, *, interleaved: bool) -> Angles:
        """The same rotation in interleaved or half-split channel order."""
        if interleaved == self.interleaved:
            return self
        pairs = (2, -1) if interleaved else (-1, 2)
        cos, sin = (
            torch.unflatten(part, -1, pairs).transpose(-1, -2).flatten(-2)
            for part in (self.cos, self.sin)
        )
        return Angles(cos, sin, interleaved)

    def of(self, tokens: Tensor) -> Angles:
        """The angles of these tokens, int64 [any]."""
        cos, sin = (part.index_select(0, tokens) for part in (self.cos, self.sin))
        return Angles(cos, sin, self.interleaved)


class Rotary:
    """Positions to angles for one `spec.Rope` (see `layers.rope.fope.Fourier` for FoPE)."""

    def __init__(self, settings: spec.Rope, device: torch.device) -> None:
        if isinstance(settings, spec.FourierRope):
            raise ModelError("A rope of mixed frequencies (FoPE) is supported in decoders alone.")
        if settings.kind not in FREQUENCIES:
            known = ", ".join(FREQUENCIES)
            raise ModelError(f"Rope kind '{settings.kind}' is not supported. Known: {known}.")
        # Computed on the CPU, so that frequencies do not depend on the device.
        frequencies, self._factor = _frequencies(settings)
        self._interleaved = settings.interleaved
        self._frequencies = frequencies.to(device)
        self._kernels: dict[torch.dtype, CpuAngles | None] = {}
        self._axes: list[Tensor] | None = None
        if settings.sections is not None:
            self._axes = [axes.to(device) for axes in axes_of(settings.sections, settings.dim)]

    def angles(self, positions: Tensor, dtype: torch.dtype) -> Angles:
        """Angles of int64 positions [T], or [axes, T] with sections, computed in float32 and
        rounded to `dtype`.

        Computed once per step, so a table over all positions would save nothing.
        """
        # With sections a text gets the same bits whether or not its batch has images.
        if self._axes is None and (kernel := self._kernel(dtype)) is not None:
            return Angles(*kernel(positions), self._interleaved)
        phases = self._phases(positions.to(torch.float32))
        cos, sin = [phase.cos() for phase in phases], [phase.sin() for phase in phases]
        if self._factor != 1.0:
            cos, sin = [c * self._factor for c in cos], [s * self._factor for s in sin]
        return Angles(
            self._paired(cos[0], cos[-1]).to(dtype)[:, None],
            self._paired(-sin[0], sin[-1]).to(dtype)[:, None],
            self._interleaved,
        )

    def _kernel(self, dtype: torch.dtype) -> CpuAngles | None:
        if dtype not in self._kernels:
            refused = refuses(dtype, self._frequencies.device)
            self._kernels[dtype] = (
                None
                if refused
                else CpuAngles(
                    self._frequencies, self._factor, interleaved=self._interleaved, dtype=dtype
                )
            )
        return self._kernels[dtype]

    def _phases(self, positions: Tensor) -> list[Tensor]:
        """[T, dim / 2] for the first and second channel of each pair; one tensor if both are
        equal."""
        if positions.ndim == 1:
            return [torch.outer(positions, self._frequencies)]
        assert self._axes is not None, "only a rope with sections turns by several axes"
        return [positions.index_select(0, axes).T * self._frequencies for axes in self._axes]

    def _paired(self, first: Tensor, second: Tensor) -> Tensor:
        """[T, dim / 2] for the first and second channel of each pair to [T, dim]."""
        half = first.shape[-1]
        paired = first.new_empty(first.shape[0], 2 * half)
        one, two = (
            (paired[:, ::2], paired[:, 1::2]) if self._interleaved else torch.split(paired, half, 1)
        )
        one.copy_(first)
        two.copy_(second)
        return paired


def _frequencies(settings: spec.Rope) -> Frequencies:
    """The frequencies of a rope. Raises `ModelError` if its parameters do not define them."""
    try:
        return FREQUENCIES[settings.kind](settings)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ModelError(
            f"The rope parameters of config.json do not define the rope type '{settings.kind}' "
            f"({type(error).__name__}: {error}). Compare them with those of the original model."
        ) from error


def rotate_(heads: Tensor, angles: Angles) -> None:
    """Rotate the first `dim` channels of heads [T, num_heads, head_dim] in place."""
    if triton.runs(heads.device) and angles.cos.shape[1] == 1:
        from baton_worker.kernels.triton import rope

        rope.rotate_(heads, angles.cos, angles.sin, interleaved=angles.interleaved)
    elif not on_cpu(heads, angles.cos, angles.sin, interleaved=angles.interleaved):
        turn_(heads, angles)


def turn_(heads: Tensor, angles: Angles) -> None:
    """The twin of kernels for `rotate_`."""
    dim = angles.cos.shape[-1]
    rotated = heads if dim == heads.shape[-1] else heads[..., :dim]
    # Swap the channels of each pair; `angles.sin` holds the sign.
    if angles.interleaved:
        swapped = torch.unflatten(rotated, -1, (-1, 2)).flip(-1).flatten(-2)
    else:
        swapped = rotated.roll(dim // 2, -1)
    rotated.mul_(angles.cos).addcmul_(swapped, angles.sin)


def default(settings: spec.Rope) -> Frequencies:
    """base^(-2i / dim) (Su et al. 2021, arXiv:2104.09864)."""
    return _inverse_powers(settings.base, settings.dim), 1.0


def backwards(settings: spec.Rope) -> Frequencies:
    """As `default`, in the other direction (nanochat)."""
    return -_inverse_powers(settings.base, settings.dim), 1.0


def linear(settings: spec.Rope) -> Frequencies:
    """Position interpolation (Chen et al. 2023, arXiv:2306.15595): all wavelengths are
    stretched."""
    return _inverse_powers(settings.base, settings.dim) / _parameters(settings)["factor"], 1.0


def proportional(settings: spec.Rope) -> Frequencies:
    """The `share` of the channels with the shortest wavelengths turns, and their wavelengths are
    those of a rope over all channels (Gemma 4)."""
    p = _parameters(settings)
    frequencies = _inverse_powers(settings.base, settings.dim) / p.get("factor", 1.0)
    frequencies[int(p["share"] * settings.dim // 2) :] = 0.0
    return frequencies, 1.0


def dynamic(settings: spec.Rope, length: int | None = None) -> Frequencies:
    """Dynamic NTK-aware scaling: the base grows with the length beyond the original context.

    A worker never serves more than `max_position` tokens, where the scaling is the identity.
    Frequencies that change during a request would be inconsistent with cached KV.
    """
    factor, dim = _parameters(settings)["factor"], settings.dim
    length = max(length or 0, settings.max_position)
    growth = factor * length / settings.max_position - (factor - 1)
    return _inverse_powers(settings.base * growth ** (dim / (dim - 2)), dim), 1.0


def dynamic_alpha(settings: spec.Rope) -> Frequencies:
    """Hunyuan's "dynamic" scaling with a fixed `alpha`: the base is scaled once."""
    alpha, dim = _parameters(settings)["alpha"], settings.dim
    return _inverse_powers(settings.base * alpha ** (dim / (dim - 2)), dim), 1.0


def ntk(settings: spec.Rope) -> Frequencies:
    """NTK-aware scaling by a fixed `factor`, or with `mixed_b` a mixed base (Su 2023, vLLM's
    `NTKScalingRotaryEmbedding`): the longest wavelength is stretched by `factor`, the shortest
    kept."""
    p, dim = _parameters(settings), settings.dim
    factor, mixed = p["factor"], p.get("mixed_b")
    if mixed is None:
        frequencies = _inverse_powers(settings.base * factor, dim)
        return frequencies / factor ** (2 / dim), 1.0
    steepness = math.log(factor) / (dim / 2) ** mixed
    stretch = (steepness * torch.arange(1, dim // 2 + 1).float() ** mixed).exp()
    return _inverse_powers(settings.base, dim) / stretch, 1.0


def longrope(settings: spec.Rope) -> Frequencies:
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): a divisor per frequency, from one list for
    short and another for long sequences.

    A worker with a maximum length beyond the original context uses the long divisors for every
    token of every request, others the short ones. Switching within a request would be inconsistent
    with KV that is cached or shared with other requests.
    """
    p = _parameters(settings)
    original = p["original_max_position_embeddings"]
    divisors = p["long_factor"] if p["served"] > original else p["short_factor"]
    factor = p.get("factor") or settings.max_position / original
    attention = p.get("attention_factor")
    if attention is None:
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    exponents = torch.arange(0, settings.dim, 2, dtype=torch.float32) / settings.dim
    return 1.0 / (torch.tensor(divisors) * settings.base**exponents), attention


def llama3(settings: spec.Rope) -> Frequencies:
    """Llama 3.1: long wavelengths divided by `factor`, short ones kept, a linear ramp between."""
    p = _parameters(settings)
    low, high = p["low_freq_factor"], p["high_freq_factor"]
    frequencies = _inverse_powers(settings.base, settings.dim)
    wavelengths = 2 * math.pi / frequencies
    turns = p["original_max_position_embeddings"] / wavelengths
    smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - smooth) * frequencies / p["factor"] + smooth * frequencies, 1.0


def yarn(settings: spec.Rope) -> Frequencies:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): interpolate low frequencies, and scale the
    attention temperature through the factor on cos and sin."""
    p, dim = _parameters(settings), settings.dim
    original = p["original_max_position_embeddings"]
    factor = p.get("factor") or settings.max_position / original
    low, high = _yarn_range(settings, original)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    powers = settings.base ** (torch.arange(0, dim, 2).float() / dim)
    return ramp / (factor * powers) + (1 - ramp) / powers, _yarn_attention_factor(p, factor)


def _yarn_range(settings: spec.Rope, original: int) -> tuple[float, float]:
    """The channel range of YaRN's ramp: `beta_fast` to `beta_slow` rotations."""
    p, dim = _parameters(settings), settings.dim

    def channel(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(settings.base))

    low, high = channel(p.get("beta_fast") or 32), channel(p.get("beta_slow") or 1)
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return low, high + 0.001 if low == high else high


def _yarn_attention_factor(p: dict[str, Any], factor: float) -> float:
    if p.get("attention_factor") is not None:
        return float(p["attention_factor"])

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if p.get("mscale") and p.get("mscale_all_dim"):
        return mscale(p["mscale"]) / mscale(p["mscale_all_dim"])
    return mscale(1.0)


def factors(settings: spec.Rope) -> Frequencies:
    """Each frequency divided by its own factor: GGUF's form of Llama 3 scaling."""
    divisors = torch.tensor(_parameters(settings)["factors"], dtype=torch.float32)
    return _inverse_powers(settings.base, settings.dim) / divisors, 1.0


def axial(settings: spec.Rope) -> Frequencies:
    """Axial rope: each axis has all wavelengths over its share of the channels (Llama 4's vision
    encoder and other 2-D ropes of ViTs: Heo et al. 2024, arXiv:2403.13298). With "axial_halves"
    each half of a head has an axis and its pairs, see `layers.attention.bidirectional`."""
    axes = 2 if settings.sections is None else len(settings.sections.sizes)
    return _inverse_powers(settings.base, settings.dim // axes).repeat(axes), 1.0


def axial_alternating(settings: spec.Rope) -> Frequencies:
    """Two axes that share the wavelengths of the channels in turn (Pixtral, arXiv:2410.07073)."""
    powers = _inverse_powers(settings.base, settings.dim)
    return torch.cat((powers[::2], powers[1::2])), 1.0


def axial_paired(settings: spec.Rope) -> Frequencies:
    """Two axes with all wavelengths each, wavelength by wavelength (MoonViT, arXiv:2504.07491)."""
    return _inverse_powers(settings.base, settings.dim // 2).repeat_interleave(2), 1.0


FREQUENCIES: dict[str, Callable[[spec.Rope], Frequencies]] = {
    "default": default,
    "backwards": backwards,
    "linear": linear,
    "proportional": proportional,
    "dynamic": dynamic,
    "dynamic_alpha": dynamic_alpha,
    "ntk": ntk,
    "longrope": longrope,
    "llama3": llama3,
    "yarn": yarn,
    "factors": factors,
    "axial": axial,
    "axial_halves": axial,
    "axial_alternating": axial_alternating,
    "axial_paired": axial_paired,
}


def _inverse_powers(base: float, dim: int) -> Tensor:
    return 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))


def _parameters(settings: spec.Rope) -> dict[str, Any]:
    return dict(settings.parameters)
