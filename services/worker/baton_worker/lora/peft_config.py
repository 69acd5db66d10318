"""The adapter_config.json of a PEFT folder: ranks and scales of products, and unsupported
options."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from baton.checkpoint.json_file import read_json
from baton.errors import ModelError

_MERGE = "merge the adapter into its base (peft: merge_and_unload) and serve that"
REFUSED = {
    "lora_bias": "its products have biases",
    "trainable_token_indices": "it replaces rows of the embedding table",
    "layer_replication": "it repeats layers of its base",
    "alora_invocation_tokens": "it begins at a token of the prompt (activated LoRA)",
    "use_qalora": "its products read means of groups (QALoRA)",
    "use_bdlora": "its products are block-diagonal",
    "arrow_config": "it chooses among adapters token by token (Arrow)",
    "kasa_config": "it changes its base (KaSA)",
    "monteclora_config": "its weights are drawn (MonteCLoRA)",
}
"""Field -> why an adapter that has it cannot be applied beside others."""
IGNORED = frozenset(
    {
        "task_type",
        "auto_mapping",
        "peft_version",
        "base_model_name_or_path",
        "revision",
        "inference_mode",
        "target_modules",
        "target_parameters",
        "exclude_modules",
        "lora_dropout",
        "fan_in_fan_out",
        "layers_to_transform",
        "layers_pattern",
        "megatron_config",
        "megatron_core",
        "loftq_config",
        "eva_config",
        "corda_config",
        "lora_ga_config",
        "velora_config",
        "qalora_group_size",
        "runtime_config",
        "ensure_weight_tying",
    }
)
"""Fields that are about training, or that the names of the stored tensors tell."""
_READ = frozenset(
    {
        "peft_type",
        "r",
        "lora_alpha",
        "use_rslora",
        "use_dora",
        "rank_pattern",
        "alpha_pattern",
        "bias",
        "init_lora_weights",
        "modules_to_save",
    }
)
_LARGEST = 4 * 1024 * 1024
"""Most bytes of the file."""
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that change the base weights: the stored products are of another base."""


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """The fields of an adapter_config.json that are read."""

    rank: int
    alpha: float
    rslora: bool = False
    dora: bool = False
    """Whether each adapted module has magnitudes."""
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    modules_to_save: tuple[str, ...] = ()
    """Ends of the names of modules that it stores whole."""

    @classmethod
    def read(cls, folder: Path) -> PeftConfig:
        """Read the file of a folder.

        Raises:
            ModelError: there is no such file, or its options are not supported.
        """
        path = folder / "adapter_config.json"
        if not os.path.isfile(path):  # Of a name that is too long, too.
            raise ModelError(f"{folder} has no adapter_config.json: it is not a PEFT folder.")
        data = read_json(path, most=_LARGEST)
        if why := refuses(data):
            raise ModelError(f"The adapter {folder} cannot be served: {why}.")
        try:
            config = cls(
                rank=int(data["r"]),
                alpha=float(data["lora_alpha"]),
                rslora=bool(data.get("use_rslora")),
                dora=bool(data.get("use_dora")),
                rank_pattern={k: int(v) for k, v in (data.get("rank_pattern") or {}).items()},
                alpha_pattern={k: float(v) for k, v in (data.get("alpha_pattern") or {}).items()},
                modules_to_save=tuple(map(str, data.get("modules_to_save") or ())),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ModelError(f"{path} is not one that peft has written: {error!r}.") from error
        if min((config.rank, *config.rank_pattern.values())) < 1:
            raise ModelError(f"{path} has a rank below 1 (r, rank_pattern).")
        if not all(map(math.isfinite, (config.alpha, *config.alpha_pattern.values()))):
            raise ModelError(f"{path} has an alpha that is not finite (lora_alpha, alpha_pattern).")
        return config

    def canonical(self) -> bytes:
        """Text that is equal for equal scales; part of the adapter's digest."""
        patterns = sorted(self.rank_pattern.items()), sorted(self.alpha_pattern.items())
        fields = [self.rank, self.alpha, self.rslora, *patterns]
        return json.dumps([*fields, "dora"] if self.dora else fields).encode()


def refuses(data: Mapping[str, Any]) -> str | None:
    """Why an adapter cannot be served, and what to do instead; None if it can."""
    if data.get("peft_type") != "LORA":
        return f"its peft_type is {data.get('peft_type')!r}, and only LORA is served"
    for name, why in REFUSED.items():
        if data.get(name):
            return f"{why} ({name}); {_MERGE}"
    if data.get("bias", "none") != "none":
        return f"it has biases of its own (bias: {data['bias']}); {_MERGE}"
    start = data.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        return (
            f"init_lora_weights {start!r} has changed the base weights; convert it (peft: "
            "save_pretrained with path_initial_model_for_weight_conversion)"
        )
    strange = sorted(k for k, v in data.items() if v and k not in IGNORED | _READ | {*REFUSED})
    if strange:
        return f"its field {strange[0]} is unknown; {_MERGE}"
    return None
