"""Magnitudes of decomposed adapters (DoRA, arXiv:2402.09353) as peft stores them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels.lora import LoraPair
from baton_worker.lora.peft_config import PeftConfig
from baton_worker.lora.targets import LoraTargets

_NAME = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+)\.lora_magnitude_vector(?:\.default)?(?:\.weight)?"
)
_MERGE = "Merge it into its base (peft: merge_and_unload) and serve that."


def is_magnitude(name: str) -> bool:
    """True for the name of a stored tensor that holds magnitudes."""
    return _NAME.fullmatch(name) is not None


def with_magnitudes(
    folder: Path,
    pairs: Mapping[str, LoraPair],
    stored: Mapping[str, Tensor],
    config: PeftConfig,
    targets: LoraTargets,
) -> dict[str, LoraPair]:
    """The products of each module of the model with its magnitudes, if its config has `use_dora`.

    Raises:
        ModelError: magnitudes are missing, unexpected, of another shape, or of a module that cannot
            have them.
    """
    magnitudes = dict(_magnitudes(folder, stored, targets))
    if magnitudes and not config.dora:
        raise ModelError(f"The adapter {folder} holds magnitudes, and its config no use_dora.")
    if not config.dora:
        return dict(pairs)
    for module in pairs:
        if why := targets.magnitude_blocker(module):
            raise ModelError(f"The adapter {folder} decomposes {module} (DoRA): {why}. {_MERGE}")
        if module not in magnitudes:
            raise ModelError(f"The adapter {folder} has use_dora, and no magnitudes of {module}.")
        if len(magnitudes[module]) != pairs[module].b.shape[1]:
            raise ModelError(f"The adapter {folder} has other rows of magnitudes in {module}.")
    return {name: pair._replace(magnitude=magnitudes[name]) for name, pair in pairs.items()}


def _magnitudes(
    folder: Path, stored: Mapping[str, Tensor], targets: LoraTargets
) -> Iterator[tuple[str, Tensor]]:
    """By module of the model: float32 [out_features]."""
    for name, tensor in stored.items():
        if (match := _NAME.fullmatch(name)) is None:
            continue
        module, rows = match["module"], tensor.float().view(-1, 1)
        if not targets.takes(module):
            raise ModelError(
                f"The adapter {folder} decomposes {module} (DoRA): only linear layers of this "
                f"model have magnitudes. {_MERGE}"
            )
        for part, norms in targets.split(module, rows):
            yield part, norms.flatten().to(targets.like.device, copy=True)
