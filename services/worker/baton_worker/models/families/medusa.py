"""Draft heads without attention: Medusa, and the MLP speculator."""

from __future__ import annotations

from baton_worker.models.families.common import Config
from baton_worker.models.families.draft_common import Target, draft_head
from baton_worker.models.families.moe_common import first
from baton_worker.spec import MedusaHeads, MlpSpeculator, TensorLayout

_MEDUSA = TensorLayout(
    renames=(
        (r"^medusa_heads?\.", ""),
        (r"^(\d+)\.(\d+)\.linear\.", r"blocks.\1.layers.\2."),
        (r"^(\d+)\.\d+\.weight$", r"lm_heads.\1.weight"),
        (r"^lm_head\.weight$", "lm_heads.0.weight"),
    ),
)
"""Names are those of vLLM's checkpoints; the authors' are lists: the residual blocks of a head,
then its language head."""
_TIED = TensorLayout(renames=((r"^speculator\.", ""),), unused=("emb.", "proj.", "head.", "ln."))
_UNTIED = TensorLayout(renames=((r"^speculator\.", ""),))


@draft_head("medusa", "MedusaModel")
def medusa(c: Config, target: Target) -> MedusaHeads:
    vocab = first(c, "vocab_size", default=target.spec.vocab)
    draft_vocab = first(c, "truncated_vocab_size", default=vocab)
    return MedusaHeads(
        hidden=first(c, "hidden_size", default=target.spec.hidden),
        vocab=draft_vocab,
        num_heads=first(c, "num_heads", "medusa_num_heads"),
        num_layers=first(c, "num_hidden_layers", "medusa_num_layers", default=1),
        # The authors' blocks have a bias.
        bias=first(c, "medusa_fc_bias", default=hasattr(c, "medusa_num_heads")),
        shared_head=getattr(c, "original_lm_head", False),
        target_vocab=vocab,
        tensors=_MEDUSA,
    )


@draft_head("mlp_speculator", "MLPSpeculatorPreTrainedModel", "MLPSpeculatorModel")
def mlp_speculator(c: Config, target: Target) -> MlpSpeculator:
    hidden = first(c, "emb_dim", default=target.spec.hidden)
    tied = getattr(c, "tie_weights", False)
    return MlpSpeculator(
        hidden=hidden,
        inner=getattr(c, "inner_dim", 0) or hidden,
        vocab=first(c, "vocab_size", default=target.spec.vocab),
        num_heads=c.n_predict,
        state_weight=0.5 ** (0.5 / c.n_predict),
        tied=tied,
        scale_input=getattr(c, "scale_input", False),
        tensors=_TIED if tied else _UNTIED,
    )
