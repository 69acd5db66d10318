"""For which models and settings drafts may be trees."""

from __future__ import annotations

from baton.errors import SettingsError
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.config import Config
from baton_worker.models.decoder import Model
from baton_worker.spec import Attention, LatentAttention, Mixer
from baton_worker.speculative.config import SpeculativeConfig

_FREE = ("medusa",)
"""Methods whose drafts do not depend on the drafts before them."""


def check_tree(speculative: SpeculativeConfig, loaded: LoadedModel, config: Config) -> None:
    """Raise `SettingsError` where these drafts cannot be a tree, with what to do instead."""
    if speculative.tree.is_chain:
        return
    if why := _why_not(speculative, loaded, config):
        raise SettingsError(
            f"--speculative-config: speculative_token_tree cannot be used, {why}. Leave it out: "
            "drafts are then a chain."
        )


def _why_not(speculative: SpeculativeConfig, loaded: LoadedModel, config: Config) -> str:
    if config.num_ranks > 1 or config.decode_context_parallel_size > 1:
        return "because a tree is verified in one process"
    if config.exact:
        return "because --exact wants sums in the order of a chain"
    if not isinstance(loaded.model, Model):
        return "because this model runs in the code of transformers"
    if other := next((m for m, _ in loaded.spec.layers if not _supports_trees(m)), None):
        return f"because this model has layers of {type(other).__name__}, which read a chain"
    if not speculative.tree.follows_first and speculative.method not in _FREE:
        return (
            f"because {speculative.method} drafts behind its most probable tokens alone: of "
            "siblings only the first may have children"
        )
    return ""


def _supports_trees(mixer: Mixer | None) -> bool:
    if type(mixer) is Attention:
        return not mixer.mask.spans
    return mixer is None or type(mixer) is LatentAttention
