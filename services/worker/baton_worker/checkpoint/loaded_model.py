"""A loaded model and its properties."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

from baton_worker.checkpoint.kept_weights import KeptWeights
from baton_worker.distributed.eplb.balancer import ExpertBalancer
from baton_worker.distributed.shard_weights import Parts
from baton_worker.models.decoder import Model
from baton_worker.models.encoder import EncoderModel
from baton_worker.models.transformers_backend import TransformersModel
from baton_worker.models.vision.build import TowerModel
from baton_worker.pooling.recipe import PoolingRecipe
from baton_worker.spec import Decoder
from baton_worker.speculative.proposer import DraftWeights


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded model and its properties."""

    model: Model | EncoderModel | TransformersModel
    spec: Decoder
    """The spec of this rank's shard, of its stage where there are several."""
    config: SimpleNamespace
    max_length: int
    """Context length of the checkpoint in tokens, prompt and completion together."""
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    weight_bytes: int = 0
    """Bytes of all weights as held in memory; a tied head counts once."""
    recipe: PoolingRecipe | None = None
    """The recipe of `model.pooler`; None if the model only generates."""
    generates: bool = True
    parts: Parts | None = None
    """The full model's layers and this rank's place among them, on several ranks."""
    drafter: DraftWeights | None = None
    """The drafter, if it has weights of its own."""
    kept: KeptWeights | None = None
    """The memory of its weights, where it outlives the worker."""
    all_stages: Decoder | None = None
    """The spec of this rank's shard of all stages, where there are several."""
    balancer: ExpertBalancer | None = None
    """Moves its experts between workers, with expert load balancing."""

    @property
    def unstaged(self) -> Decoder:
        """The spec of this rank's shard, with the layers of all stages."""
        return self.spec if self.all_stages is None else self.all_stages

    @property
    def kv_spec(self) -> Decoder:
        """The layers whose KV is in a page: its own, then those of a draft head."""
        if self.drafter is None or not self.drafter.layers:
            return self.spec
        return replace(self.spec, layers=self.spec.layers + self.drafter.layers)


def held_bytes(model: Model | EncoderModel | TransformersModel | TowerModel) -> int:
    """Bytes of all weights as held in memory; a tied head counts once."""
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    return parameters + sum(layer.weight_bytes for layer in model.layers())
